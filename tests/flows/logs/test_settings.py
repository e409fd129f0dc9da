"""Settings that logs state: what is refused, and what is noted under the table."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from flows.logs.logs_report import read_logs, report_logs
from flows.lookup.results import show_logs
from infra.errors import ConfigError
from tests.flows.logs.lmms_logs import change_rows, state_all, write_logs
from tests.flows.logs.test_every_eval_ever import write_evaluation

SCORES = [1.0, 0.0, 1.0]
LMMS = "20261127_101500_samples_chartqa.jsonl"
EEE = "3f9a_samples.jsonl"
Change = Callable[[Any], None]


def _put(path: str, value: Any) -> Change:
    """Returns a change of the member of an object that a path such as "configs/chartqa" names."""

    def change(values: Any) -> None:
        *parents, name = path.split("/")
        for parent in parents:
            values = values[int(parent)] if parent.isdigit() else values.setdefault(parent, {})
        values[name] = value

    return change


def _both(*changes: Change) -> Change:
    def change_all(values: Any) -> None:
        for change in changes:
            change(values)

    return change_all


def _lmms(root: Path, model: str, change: Change = lambda _: None, **values: Any) -> None:
    def changed(results: dict[str, Any]) -> None:
        state_all(results)
        change(results)

    write_logs(root, model, SCORES, change=changed, **values)


def _evaluation(root: Path, model: str, change: Change = lambda _: None) -> None:
    def changed(evaluation: dict[str, Any], _: list[Any]) -> None:
        evaluation["model_info"]["id"] = model
        change(evaluation["evaluation_results"][1])

    write_evaluation(root / model, changed)


CONFIG = "configs/chartqa"


@pytest.mark.parametrize(
    ("path", "value", "setting", "first"),
    [
        ("higher_is_better/chartqa/relaxed", False, "direction", "'higher is better'"),
        (f"{CONFIG}/metadata", [{"version": 2.0}], "version", "0.0"),
        (f"{CONFIG}/generation_kwargs/temperature", 1, "generation.temperature", "0"),
        ("config/gen_kwargs", {"temperature": 0.7}, "generation.temperature", "0"),
        (f"{CONFIG}/generation_kwargs/until", ["a", "b"], "generation.until", repr("\n\n")),
        (f"{CONFIG}/dataset_path", "else/ChartQA", "dataset.path", "'lmms-lab/ChartQA'"),
        (f"{CONFIG}/dataset_kwargs/revision", "b", "dataset.revision", "'a'"),
        (f"{CONFIG}/metric_list/0/ignore_case", True, "metric.ignore_case", "False"),
        (f"{CONFIG}/filter_list/0/filter", [{"function": "last"}],
         "filter_list.filter.function", "'take_first'"),
        (f"{CONFIG}/lmms_eval_specific_kwargs", {"default": {"post_prompt": "Be brief."}},
         "lmms_eval_specific_kwargs.default.post_prompt", "'Be short.'"),
        ("config/limit", 3, "limit", "'none'"),
        ("n-samples/chartqa/original", 4, "limit.samples", "3"),
    ],
)  # fmt: skip
def test_settings_of_lmms_eval_that_differ_are_refused(
    tmp_path: Path, path: str, value: Any, setting: str, first: str
):
    def some_options(results: dict[str, Any]) -> None:
        _put(f"{CONFIG}/dataset_kwargs/revision", "a")(results)
        _put(f"{CONFIG}/metric_list", [{"metric": "relaxed", "ignore_case": False}])(results)
        of_models = {"default": {"post_prompt": "Be short."}}
        _put(f"{CONFIG}/lmms_eval_specific_kwargs", of_models)(results)

    def other_option(results: dict[str, Any]) -> None:
        some_options(results)
        _put(path, value)(results)

    _lmms(tmp_path, "a", some_options)
    _lmms(tmp_path, "c", some_options)
    assert "| c |" in show_logs([tmp_path], "md")
    _lmms(tmp_path, "b", other_option)
    # In one line, with both values and both files.
    with pytest.raises(ConfigError) as error:
        show_logs([tmp_path], "md")
    message = str(error.value)
    # In order of path: a, b, c.
    place = f"{tmp_path}/b/{LMMS}: {setting} must be {first} as in {tmp_path}/a/{LMMS}, got "
    assert place in message
    assert "\n" not in message


def test_filters_that_differ_are_refused(tmp_path: Path):
    def strict(results: dict[str, Any]) -> None:
        means = results["results"]["chartqa"]
        means["relaxed,strict"] = means.pop("relaxed,none")

    write_logs(tmp_path, "a", SCORES)
    write_logs(tmp_path, "b", SCORES, change=strict)
    with pytest.raises(ConfigError, match=r"filter must be 'none' as in .*, got 'strict'\."):
        show_logs([tmp_path], "md")


def test_what_is_no_setting_may_differ(tmp_path: Path):
    def other(results: dict[str, Any]) -> None:
        config = results["configs"]["chartqa"]
        # Another process: functions lie elsewhere; and 0 is 0.0, a list of one its element.
        config |= {
            "doc_to_text": "<function chartqa_doc_to_text at 0x7fa0aa02>",
            "task_alias": "ChartQA",
            "num_fewshot": 0.0,
            "metadata": {"version": 0},
        }
        config["generation_kwargs"]["until"] = "\n\n"
        config["metric_list"][1]["ignore_case"] = True  # Of a metric that is not read.
        results["config"] |= {"batch_size": 64, "model_args": "pretrained=b"}

    _lmms(tmp_path, "a")
    _lmms(tmp_path, "b", other)
    text = show_logs([tmp_path], "md")
    assert "b − a" in text
    assert "Not stated" not in text
    assert "Scores of chartqa are over" not in text


@pytest.mark.parametrize(
    ("path", "values", "setting"),
    [
        ("metric_config/lower_is_better", (False, True), "direction"),
        ("metric_config/metric_parameters", ({"k": 1}, {"k": 5}), "metric.metric_parameters.k"),
        ("metric_config/additional_details", ({"ignore_case": "true"}, {"ignore_case": "false"}),
         "metric.ignore_case"),
        ("source_data/hf_repo", ("org/v1.0", "org/v1.1"), "dataset.path"),
        ("source_data/dataset_name", ("v1.0", "v1.1"), "dataset.name"),
        ("source_data/additional_details", ({"revision": "1.1"}, {"revision": "1.10"}),
         "dataset.revision"),
        ("source_data/hf_split", ("val", "test"), "split"),
        ("source_data/samples_number", (900, 500), "limit.samples"),
        ("generation_config/generation_args", ({"temperature": 0}, {"temperature": 1.0}),
         "generation.temperature"),
        ("generation_config/additional_details", ({"num_fewshot": "0"}, {"num_fewshot": "5"}),
         "few-shot"),
    ],
)  # fmt: skip
def test_settings_of_every_eval_ever_that_differ_are_refused(
    tmp_path: Path, path: str, values: tuple[Any, Any], setting: str
):
    for model, value in zip("ab", values, strict=True):
        _evaluation(tmp_path, model, _put(path, value))
    with pytest.raises(ConfigError) as error:
        show_logs([tmp_path], "md")
    message = str(error.value)
    assert f"{tmp_path}/b/{EEE}: {setting} must be " in message
    assert f" as in {tmp_path}/a/{EEE}, got " in message
    assert "\n" not in message


def test_settings_are_compared_between_formats(tmp_path: Path):
    def cold(result: dict[str, Any]) -> None:
        result["source_data"]["hf_repo"] = "lmms-lab/ChartQA"
        result["generation_config"] = {
            "generation_args": {"temperature": 1},
            "additional_details": {"num_fewshot": "0"},
        }

    write_logs(tmp_path / "a", "a", [1.0, 1.0, 0.0, 1.0], change=state_all)
    _evaluation(tmp_path, "b", cold)
    with pytest.raises(ConfigError, match=r"generation\.temperature must be 0 as in .*, got 1\."):
        show_logs([tmp_path], "md")


def test_all_logs_of_a_task_are_compared_also_where_the_first_states_nothing(tmp_path: Path):
    write_logs(tmp_path, "a", SCORES)
    _lmms(tmp_path, "b")
    _lmms(tmp_path, "c", _both(_put(f"{CONFIG}/num_fewshot", 5), _put("n-shot/chartqa", 5)))
    with pytest.raises(ConfigError, match=r"/c/.*few-shot must be 0 as in .*/b/"):
        show_logs([tmp_path], "md")


def test_long_texts_are_shown_where_they_differ(tmp_path: Path):
    name = f"{CONFIG}/description"
    _lmms(tmp_path, "a", _put(name, "Look. " * 99 + "Be short."))
    _lmms(tmp_path, "b", _put(name, "Look. " * 99 + "Think aloud."))
    with pytest.raises(ConfigError, match=r"must be '?….*Be short\.' .*, got ….*Think aloud\.'"):
        show_logs([tmp_path], "md")


def test_what_is_not_stated_is_noted_once_for_all_tasks(tmp_path: Path):
    for task in ("chartqa", "docvqa"):
        write_logs(tmp_path / task, "a", SCORES, task=task)
    lines = show_logs([tmp_path], "md").splitlines()
    (note,) = (line for line in lines if line.startswith("Not stated by all logs of"))
    assert "of chartqa, docvqa, so" in note
    assert note.endswith(": direction, version, few-shot, generation, dataset, limit.")
    # Stated by one of two logs: not by all.
    _lmms(tmp_path, "b")
    lines = show_logs([tmp_path], "md").splitlines()
    notes = [line for line in lines if line.startswith("Not stated by all logs of")]
    assert len(notes) == 2


def test_a_part_of_a_setting_that_one_log_states_is_noted(tmp_path: Path):
    _lmms(tmp_path, "a", _put(f"{CONFIG}/generation_kwargs/top_p", 0.9))
    _lmms(tmp_path, "b")
    (note,) = (n for n in show_logs([tmp_path], "md").splitlines() if n.startswith("Not stated"))
    assert note.endswith("the same: generation.top_p.")


@pytest.mark.parametrize(
    "text",
    [
        "temperature=0.7,do_sample=True",
        " temperature=0.70, do_sample=true,",
        '{"temperature": 0.7, "do_sample": true}',
        "{'temperature': 0.7, 'do_sample': True}",
    ],
)
def test_generation_in_one_text_is_compared_by_its_parts(tmp_path: Path, text: str):
    both, other = tmp_path / "both", tmp_path / "other"
    _lmms(both, "a", _put("config/gen_kwargs", {"temperature": 0.7, "do_sample": True}))
    _lmms(both, "b", _put("config/gen_kwargs", text))
    assert "Not stated" not in show_logs([both], "md")
    # Against one that has the same temperature, and not the rest.
    _lmms(other, "c", _put("config/gen_kwargs", "temperature=0.7"))
    assert "the same: generation.do_sample." in show_logs([both, other], "md")
    _lmms(other, "c", _put("config/gen_kwargs", None))
    with pytest.raises(ConfigError, match=r"generation\.temperature must be 0\.7 .*, got 0\."):
        show_logs([both, other], "md")
    _lmms(other, "c", _put(f"{CONFIG}/generation_kwargs", None))
    assert "the same: generation." in show_logs([both, other], "md")


def test_generation_in_a_text_of_every_eval_ever_is_compared(tmp_path: Path):
    for model, text in (("a", "temperature=0,top_p=1.0"), ("b", "temperature=1")):
        _evaluation(tmp_path, model, _put("generation_config/additional_details/gen_kwargs", text))
    with pytest.raises(ConfigError, match=r"generation\.temperature must be 0 as in .*, got 1\."):
        show_logs([tmp_path], "md")


def test_questions_that_no_log_has_are_noted(tmp_path: Path):
    def nameless(evaluation: dict[str, Any], rows: list[Any]) -> None:
        for row in rows:
            row |= {"sample_hash": "", "input": {"raw": "", "reference": ["4"]}}

    write_evaluation(tmp_path, nameless)
    assert ", questions." in show_logs([tmp_path], "md")


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        (("input", "target", "doc_hash"), "questions"),
        (("input",), "questions.prompt"),
        (("target",), "questions.target"),
        (("doc_hash",), "questions.digest"),
    ],
)
@pytest.mark.parametrize("value", [None, ""])
def test_questions_that_one_log_lacks_are_noted(
    tmp_path: Path, fields: tuple[str, ...], note: str, value: Any
):
    for model in "ab":
        _lmms(tmp_path, model)
    assert "Not stated" not in show_logs([tmp_path], "md")
    change_rows(tmp_path / "b", lambda _, row: row.update(dict.fromkeys(fields, value)))
    lines = show_logs([tmp_path], "md").splitlines()
    (line,) = (line for line in lines if line.startswith("Not stated by all"))
    assert line.endswith(f"the same: {note}.")
    if fields == ("input",):  # In neither.
        change_rows(tmp_path / "a", lambda _, row: row.update(input=value))
        assert line in show_logs([tmp_path], "md")


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (_put("n-samples/chartqa/original", 2500), "Scores of chartqa are over 3 of its 2,500"),
        (_put("n-samples", {}), None),
        (lambda results: (_put("n-samples", {})(results), _put("config/limit", 3)(results)),
         "Scores of chartqa are over the 3 items that its limit left."),
    ],
)  # fmt: skip
def test_a_part_of_a_dataset_is_noted(tmp_path: Path, change: Change, note: str | None):
    _lmms(tmp_path, "a", change)
    text = show_logs([tmp_path], "md")
    assert ("Scores of chartqa are over" in text) == (note is not None)
    assert note is None or note in text


@pytest.mark.parametrize(
    "change",
    [
        _put("source_data/samples_number", 900),
        _put("score_details/uncertainty", {"num_samples": 900}),
        _put("source_data/additional_details", {"samples_number": "900"}),
    ],
)
def test_a_part_of_an_evaluation_is_noted(tmp_path: Path, change: Change):
    _evaluation(tmp_path, "a", change)
    note = "Scores of chartqa are over 4 of its 900 items."
    for form, line in (("md", note), ("latex", f"% {note}")):
        assert line in show_logs([tmp_path], form).splitlines()


def test_several_versions_of_an_evaluator_are_noted(tmp_path: Path):
    _lmms(tmp_path, "a")
    assert "otherwise" not in show_logs([tmp_path], "md")
    _lmms(tmp_path, "b", _put("lmms_eval_version", "0.6.0"))
    assert "are of lmms-eval 0.7.3 and lmms-eval 0.6.0, which may score otherwise" in (
        show_logs([tmp_path], "md")
    )


@pytest.mark.parametrize(
    "form",
    ["pretrained=o/{0},max_frames_num={1}", {"pretrained": "o/{0}", "max_frames_num": "{1}"}],
)
def test_options_of_models_that_differ_are_noted(tmp_path: Path, form: str | dict[str, str]):
    def asked(model: str, frames: int) -> Change:
        text = form if isinstance(form, str) else json.dumps(form)
        text = text.replace("{0}", model).replace("{1}", str(frames))
        return _put("config/model_args", text if isinstance(form, str) else json.loads(text))

    for model, frames in (("a", 8), ("b", 8), ("c", 32)):
        _lmms(tmp_path, model, asked(model, frames))
        note = "chartqa were asked with other options: max_frames_num 8 (a, b), 32 (c)."
        assert (note in show_logs([tmp_path], "md")) == (model == "c")


@pytest.mark.parametrize("where", ["higher_is_better/chartqa/relaxed",
                                   "configs/chartqa/metric_list/0/higher_is_better"])  # fmt: skip
@pytest.mark.parametrize("form", ["md", "latex", "comparisons"])
def test_a_metric_of_which_lower_is_better_is_in_no_table(tmp_path: Path, where: str, form: str):
    def lower(results: dict[str, Any]) -> None:
        _put("higher_is_better", {})(results)
        _put(f"{CONFIG}/metric_list", [{"metric": "relaxed"}])(results)
        _put(where, False)(results)

    for model in "ab":
        _lmms(tmp_path, model, lower)
    with pytest.raises(ConfigError, match=r"metric must be one whose higher .* got 'relaxed', of "):
        show_logs([tmp_path], form)


def test_a_metric_of_which_more_is_better_comes_before_one_of_which_less_is(tmp_path: Path):
    def two_metrics(results: dict[str, Any]) -> None:
        means = results["results"]["chartqa"]
        results["results"]["chartqa"] = {"error,none": 1 / 3, **means}
        results["higher_is_better"]["chartqa"]["error"] = False

    _lmms(tmp_path, "a", two_metrics)
    path = tmp_path / "a" / LMMS
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [{**row, "error": 1 - row["relaxed"]} for row in rows]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (log,) = read_logs([tmp_path])
    assert log.metric == "relaxed"
    assert report_logs([log]).sections[0].cells[0].mean == pytest.approx(200 / 3)


@pytest.mark.parametrize("first", [True, False])
def test_a_log_that_says_two_directions_is_refused(tmp_path: Path, first: bool):
    def contradict(results: dict[str, Any]) -> None:
        _put("higher_is_better/chartqa/relaxed", first)(results)
        _put(f"{CONFIG}/metric_list/0/higher_is_better", not first)(results)

    _lmms(tmp_path, "a", contradict)
    with pytest.raises(ConfigError) as error:
        show_logs([tmp_path], "md")
    message = str(error.value)
    assert f"{tmp_path}/a/{LMMS}: higher_is_better and lower_is_better must be true or " in message
    both = {"higher is better", "lower is better"}
    assert {*message.partition(", got ")[2].removesuffix(".").split(" and ")} == both


@pytest.mark.parametrize("value", ["true", "false", 1, 0, "no"])
def test_a_direction_that_is_no_truth_value_is_refused(tmp_path: Path, value: Any):
    _evaluation(tmp_path, "a", _put("metric_config/lower_is_better", value))
    with pytest.raises(ConfigError, match=rf"must be true .* got lower_is_better {value!r}\.$"):
        show_logs([tmp_path], "md")


USUALLY_LOWER = (
    *("wer", "CER", "word_error_rate", "mean_abs_errors", "val/rmse", "mae", "nll_loss", "ppl"),
    *("edit_distance", "editDistance", "hallucination_rate", "latency_ms"),
    *("chair_i", "CHAIRs", "CHAIRi", "ned", "brier_score", "lpips", "fpr", "falsePositiveRate"),
    *("toxicity", "attack_success_rate", "asr", "num_violations", "unsafe", "bias_score", "l1"),
)


@pytest.mark.parametrize("metric", USUALLY_LOWER)
def test_a_name_that_says_lower_needs_a_direction(tmp_path: Path, metric: str):
    for model in "ab":
        write_logs(tmp_path, model, SCORES, metric=metric)
    with pytest.raises(ConfigError, match="nothing says that more is better, and") as error:
        show_logs([tmp_path], "md")
    assert f"{metric!r} is usually one of which lower is better" in str(error.value)
    assert "\n" not in str(error.value)
    stated = _put("higher_is_better/chartqa", {metric: True})
    write_logs(tmp_path, "b", SCORES, metric=metric, change=stated)
    assert "| b |" in show_logs([tmp_path], "md")


@pytest.mark.parametrize(
    "metric",
    ["answer_accuracy", "terse", "lossless", "anls", "inter_iou", "armchairs", "owned", "l1000"],
)
def test_names_that_say_nothing_of_the_direction_pass(tmp_path: Path, metric: str):
    write_logs(tmp_path, "a", SCORES, metric=metric)
    assert "| a |" in show_logs([tmp_path], "md")


@pytest.mark.parametrize("form", ["lmms-eval", "Every Eval Ever"])
def test_a_plain_name_comes_before_one_that_says_lower(tmp_path: Path, form: str):
    def two_metrics(results: dict[str, Any]) -> None:
        means = results["results"]["chartqa"]
        results["results"]["chartqa"] = {"error_rate,none": 1 / 3, **means}

    def two_results(evaluation: dict[str, Any], rows: list[Any]) -> None:
        results = evaluation["evaluation_results"]
        results[0] |= {
            "metric_config": {"metric_id": "error_rate"},
            "score_details": {"score": 0.2},
        }
        del results[1]["metric_config"]["lower_is_better"]

    if form == "lmms-eval":
        folder = write_logs(tmp_path, "a", SCORES, change=two_metrics)
        change_rows(folder, lambda _, row: row.update(error_rate=1 - row["relaxed"]))
    else:
        write_evaluation(tmp_path, two_results)
    (log,) = read_logs([tmp_path])
    assert log.metric == "relaxed"
    report_logs([log])


def _sources(root: Path, pictures: Sequence[str]) -> tuple[set[str], str]:
    """Returns the sources of two tasks whose items have the same pictures, and the notes."""
    for task in ("charts", "plans"):

        def change(evaluation: dict[str, Any], rows: list[Any], task: str = task) -> None:
            for result in evaluation["evaluation_results"]:
                result["evaluation_name"] = task
            for row, picture in zip(rows[4:], pictures, strict=True):
                row["metadata"] = {"image_id": picture}

        write_evaluation(root / task, change)
    report = report_logs(read_logs([root]))
    scores = [s for section in report.sections for cell in section.cells for s in cell.scores]
    return {source for score in scores for source in score.items}, " ".join(report.notes)


def test_pictures_of_two_tasks_are_one_only_by_digest(tmp_path: Path):
    named, notes = _sources(tmp_path / "ids", ["7", "7", "8", "8"])
    assert len(named) == 4
    assert "Pictures of charts, plans have names and no digests" in notes
    digests = [letter * 64 for letter in "ffee"]
    known, notes = _sources(tmp_path / "digests", digests)
    assert known == {*digests}
    assert "Pictures of" not in notes
    write_evaluation(tmp_path / "one")  # Whose pictures have names, too.
    assert "Pictures of" not in show_logs([tmp_path / "one"], "md")
    mixed, _ = _sources(tmp_path / "mixed", ["7", "7", *digests[:2]])
    assert len(mixed) == 3


def _inspect(scorer: str, metric: str, *, new: bool, more: dict[str, Any] | None = None) -> Change:
    """Returns a change of a result to one that inspect_ai's converter writes, before 0.3 or new."""

    def change(result: dict[str, Any]) -> None:
        named = {"metric_name": metric} if new else {"evaluation_description": metric}
        result["metric_config"] = {"lower_is_better": False, **named, **(more or {})}
        if not new:
            result["evaluation_name"] = f"chartqa - {scorer}"

    return change


def _write_inspect(root: Path, scorer: str, metric: str, **values: Any) -> None:
    for model in "ab":

        def changed(evaluation: dict[str, Any], rows: list[Any], model: str = model) -> None:
            evaluation["model_info"]["id"] = model
            del evaluation["evaluation_results"][0], rows[:4]
            (result,) = evaluation["evaluation_results"]
            result["score_details"]["score"] = 0.75
            _inspect(scorer, metric, **values)(result)
            result["evaluation_result_id"] = f"{scorer}:{metric}" if values["new"] else "1"
            for row in rows:
                row["evaluation_result_id"] = result["evaluation_result_id"]

        write_evaluation(root / model, changed)


@pytest.mark.parametrize("new", [True, False])
def test_a_direction_that_a_converter_guesses_is_not_believed_against_a_name(
    tmp_path: Path, new: bool
):
    for scorer, metric, name in (
        ("wer", "mean", "mean of wer"),
        ("edit_distance", "mean", "mean of edit_distance"),
        ("wer", "wer", "wer"),
    ):
        _write_inspect(tmp_path / f"{scorer}-{metric}", scorer, metric, new=new)
        with pytest.raises(ConfigError, match=f"and '{name}' is usually one of which lower"):
            show_logs([tmp_path / f"{scorer}-{metric}"], "md")
    # What the message says to state is believed; and so is what no name contradicts.
    _write_inspect(tmp_path / "more", "wer", "mean", new=new, more={"higher_is_better": True})
    assert "| b |" in show_logs([tmp_path / "more"], "md")
    _write_inspect(tmp_path / "match", "match", "accuracy", new=new)
    text = show_logs([tmp_path / "match"], "md")
    assert "| b |" in text
    assert "the same: direction" not in text


def test_a_direction_that_a_converter_does_not_know_is_noted(tmp_path: Path):
    unknown = {"additional_details": {"polarity": "unknown", "bounds_status": "unknown"}}
    _write_inspect(tmp_path, "match", "mean", new=True, more=unknown)
    assert "the same: direction, filter, version, " in show_logs([tmp_path], "md")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_put("versions/chartqa", 2.0), r"version must be the same in .*, got 2\.0 and 0\.0\."),
        (_put("n-shot/chartqa", 5), r"few-shot must be the same in .*, got 5 and 0\."),
    ],
)
def test_a_log_that_says_two_versions_or_shots_is_refused(
    tmp_path: Path, change: Change, message: str
):
    _lmms(tmp_path, "a", change)
    with pytest.raises(ConfigError, match=message):
        show_logs([tmp_path], "md")


@pytest.mark.parametrize("form", [lambda shots: shots, lambda shots: [shots]])
def test_shots_that_a_prompt_itself_has_count_where_none_is_added(tmp_path: Path, form: Any):
    metadata = form({"version": 0.0, "num_fewshot": 8})
    _lmms(tmp_path, "a", _both(_put("n-shot/chartqa", 8), _put(f"{CONFIG}/metadata", metadata)))
    assert read_logs([tmp_path])[0].settings["few-shot"] == 8
    assert "| a |" in show_logs([tmp_path], "md")


def test_versions_of_a_task_that_a_library_states_are_compared(tmp_path: Path):
    for model in "ab":

        def changed(evaluation: dict[str, Any], _: list[Any], model: str = model) -> None:
            evaluation["model_info"]["id"] = model
            evaluation["eval_library"]["additional_details"] = {"task_version": f"{model}1"}

        write_evaluation(tmp_path / model, changed)
    with pytest.raises(ConfigError, match=r"version must be 'a1' as in .*, got 'b1'\."):
        show_logs([tmp_path], "md")


@pytest.mark.parametrize("text", ["prompt", "target"])
@pytest.mark.parametrize("has_text", [True, False])
def test_digests_of_texts_are_compared(tmp_path: Path, text: str, has_text: bool):
    fields = {"prompt": "input", "target": "target"}

    def change(of_row: Callable[[int], str]) -> Callable[[int, dict[str, Any]], None]:
        def changed(number: int, row: dict[str, Any]) -> None:
            if not has_text:
                del row[fields[text]]
            row[f"{text}_hash"] = of_row(number)

        return changed

    for model in "ab":
        _lmms(tmp_path, model)
        change_rows(tmp_path / model, change("{:064x}".format))
    assert "Not stated" not in show_logs([tmp_path], "md")
    _lmms(tmp_path, "b")
    change_rows(tmp_path / "b", change(lambda number: f"{number + number // 2:064x}"))
    with pytest.raises(ConfigError, match=rf"{text} digest of item 2 must be …0+2' as in .*3'\."):
        show_logs([tmp_path], "md")


def test_a_digest_in_one_log_is_not_compared_with_a_text_in_another(tmp_path: Path):
    for model in "ab":
        _lmms(tmp_path, model)
    digest = {"target": None, "target_hash": "f" * 64}
    change_rows(tmp_path / "b", lambda _, row: row.update(digest))
    assert "the same: questions.target." in show_logs([tmp_path], "md")
    change_rows(tmp_path / "a", lambda _, row: row.update(target=None))
    assert "the same: questions.target." in show_logs([tmp_path], "md")


OPTIONS = "lmms_eval_specific_kwargs"


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (_put(f"{CONFIG}/dataset_name", None), _put(f"{CONFIG}/dataset_name", "human"),
         "dataset.config must be '' .*'human'"),
        # A config leaves out what is null.
        (lambda _: None, _put(f"{CONFIG}/dataset_name", "human"),
         "dataset.config must be '' .*'human'"),
        (_put(f"{CONFIG}/{OPTIONS}/post_prompt", ""), _put(f"{CONFIG}/{OPTIONS}/post_prompt", "S"),
         f"{OPTIONS}.post_prompt must be '' .*'S'"),
        (_put(f"{CONFIG}/{OPTIONS}", {}),
         _put(f"{CONFIG}/{OPTIONS}", {"pre_prompt": "", "post_prompt": "S"}),
         f"{OPTIONS}.post_prompt must be '' .*'S'"),
        (_put(f"{CONFIG}/{OPTIONS}", {"pre_prompt": "", "post_prompt": "S"}),
         _put(f"{CONFIG}/{OPTIONS}", None), f"{OPTIONS} must be 'S' .*''"),
        (lambda results: results["configs"]["chartqa"].pop("filter_list"),
         _put(f"{CONFIG}/filter_list/0/filter/0/function", "regex"),
         "filter_list.filter.function must be 'take_first' .*'regex'"),
        (lambda _: None,
         _put(f"{CONFIG}/filter_list/0/filter", [{"function": "regex"}, {"function": "last"}]),
         "filter_list.filter must be 'take_first' .*regex"),
        (lambda _: None, _put(f"{CONFIG}/metric_list/0/ignore_case", True),
         "metric.ignore_case must be False .*True"),
        (_put("system_instruction", None), _put("system_instruction", "Help."),
         "system_instruction must be '' .*'Help.'"),
    ],
)  # fmt: skip
def test_what_is_stated_as_empty_differs_from_what_is_not(
    tmp_path: Path, first: Change, second: Change, message: str
):
    _lmms(tmp_path, "a", first)
    _lmms(tmp_path, "b", first)
    assert "Not stated" not in show_logs([tmp_path], "md")
    _lmms(tmp_path, "b", second)
    with pytest.raises(ConfigError, match=message):
        show_logs([tmp_path], "md")


def test_a_key_that_one_log_lacks_is_noted_where_it_has_no_default(tmp_path: Path):
    _lmms(tmp_path, "a", _put(f"{CONFIG}/{OPTIONS}/post_prompt", ""))
    _lmms(tmp_path, "b")
    assert f"the same: {OPTIONS}.post_prompt." in show_logs([tmp_path], "md")


def test_a_table_of_other_systems_has_checkpoints_and_no_seeds(tmp_path: Path):
    for model in "ab":
        _lmms(tmp_path, model)
    latex, text = (show_logs([tmp_path], form) for form in ("latex", "md"))
    assert "Scores: one checkpoint of each model, each score over 3 items" in latex
    assert "seed from" not in latex
    assert "they hold for these checkpoints, one of each model." in text
    assert "there is one seed" not in text
