"""Models of other systems beside a study of our own: the table, and what is refused."""

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.logs.beside_own import add_logs
from flows.logs.item_log import ItemLog, ItemLogError, LoggedItem
from flows.logs.logs_report import read_logs
from flows.logs.own_questions import OwnQuestion, score_again
from flows.lookup.results import OwnRun, show_logs
from flows.report.build import build_report
from flows.report.cells import NO_BUDGET, Plan, Report, Score
from flows.report.items import items_by_source, mean_item_score
from flows.report.render import FORMATS, comparisons_to_csv, render_report
from infra.errors import ConfigError
from infra.store.store import Store
from model.eval.metrics.miou import miou
from model.eval.scorer import fields_of
from model.masks.codec import MaskCodec, init_params
from model.masks.config import MaskCodecConfig
from tests.flows.logs.evaluations import write_evaluation
from tests.flows.logs.lmms_logs import write_logs
from tests.flows.pages.studies import MASK, write_study
from tests.flows.report.test_gather import PLAN as GATHER_PLAN
from tests.flows.report.test_gather import QUESTIONS, results_of, study
from tests.model.tiny_data import mask_record

NUM = 40
"""Number of questions; four ask about each picture."""

PLAN = Plan(methods=("vanilla", "parcel"), benchmarks=("chartqa", "toy"), budgets=(16, 64),
            seeds=(5, 7), full_budget=64)  # fmt: skip
SAME = {"relaxed": "relaxed_accuracy", "match": "relaxed_accuracy"}


def _questions(benchmark: str = "chartqa") -> tuple[OwnQuestion, ...]:
    """Returns questions whose ids are in another order than their numbers in a log."""
    return tuple(
        OwnQuestion(
            id=f"{benchmark}/{number:03}",
            source=f"picture {number // 4}",
            prefix=f"answer en How many? {NUM - 1 - number}",
            answers=("four", "4"),
        )
        for number in range(NUM)
    )


def _scores(seed: int, chance: float = 0.6) -> list[float]:
    """Returns scores in the order of the numbers in a log."""
    rng = random.Random(seed)
    return [float(rng.random() < chance) for _ in range(NUM)]


def _report() -> Report:
    scores = []
    for benchmark in PLAN.benchmarks:
        for place, (method, budget) in enumerate([("vanilla", 64), ("parcel", 16), ("parcel", 64)]):
            for seed in PLAN.seeds:
                of_items = _scores(seed, 0.5 + 0.1 * place)[::-1]
                pairs = zip(_questions(), of_items, strict=True)
                items = items_by_source((question.source, score) for question, score in pairs)
                scores.append(
                    Score(
                        benchmark=benchmark, method=method, budget=budget, seed=seed,
                        score=mean_item_score(items), metric="relaxed_accuracy", artifact="",
                        items=items,
                    )
                )  # fmt: skip
    return build_report(PLAN, scores, {"chartqa": 20.0})


def _write_all(root: Path, scores: Sequence[float]) -> None:
    """Writes one model's scores as two systems log them."""
    write_logs(root / "lmms", "lmms", list(scores), prompt="How many? {}")
    write_evaluation(root / "logs", "eee", scores, per_picture=4)


def _add(folder: Path, report: Report | None = None) -> Report:
    questions = {"chartqa": _questions()}
    return add_logs(report or _report(), PLAN, read_logs([folder]), questions, SAME)


def test_a_file_of_each_format_stands_beside_our_own(tmp_path: Path):
    _write_all(tmp_path, _scores(1))
    own = _report()
    report = _add(tmp_path, own)
    section, other = report.sections
    assert section.methods == ("vanilla", "parcel", "lmms", "eee")
    assert section.budgets == (16, 64, NO_BUDGET)
    # Ours are what they were.
    for method in PLAN.methods:
        for budget in PLAN.budgets:
            assert section.cell(method, budget) == own.sections[0].cell(method, budget)
    # One model's items, however they were logged, have one score and one interval.
    cells = [section.cell(method, NO_BUDGET) for method in section.methods[2:]]
    assert [cell.mean for cell in cells] == pytest.approx([100 * sum(_scores(1)) / NUM] * 2)
    assert {(cell.n, cell.expected, cell.items) for cell in cells} == {(1, 1, NUM)}
    assert len({(cell.low, cell.high) for cell in cells}) == 1
    # Where no log was given, the columns are there, and empty.
    assert other.methods == section.methods
    assert other.cell("lmms", NO_BUDGET).expected == 0
    for form in FORMATS:
        assert "eee" in render_report(report, form)
    text = render_report(report, "md")
    assert "score @16 | score @64 | score @–" in text
    assert "@0" not in text


def test_differences_are_paired_by_item_over_our_seeds(tmp_path: Path):
    _write_all(tmp_path, _scores(5, 0.7))
    section = _add(tmp_path).sections[0]
    found = {(c.method, c.other, c.budget): c for c in section.comparisons}
    assert {key for key in found if key[1] == "lmms"} == {
        ("vanilla", "lmms", 64),
        ("parcel", "lmms", 16),
        ("parcel", "lmms", 64),
        ("eee", "lmms", NO_BUDGET),
    }
    # The log has the scores of seed 5 of parcel at 64: what differs are those of seed 7.
    entry = found["parcel", "lmms", 64]
    cell = section.cell("parcel", 64)
    assert entry.mean == pytest.approx((cell.scores[1].score - cell.scores[0].score) / 2)
    assert (entry.seeds, entry.items, entry.over) == (2, NUM, "seeds and items")
    assert found["eee", "lmms", NO_BUDGET].mean == 0


def test_an_interval_has_the_clusters_of_our_pictures(tmp_path: Path):
    scores = [float(number // 4 % 2) for number in range(NUM)]
    write_evaluation(tmp_path, "a", scores)
    cell = _add(tmp_path).sections[0].cell("a", NO_BUDGET)
    alone = build_report(
        Plan(methods=("a",), benchmarks=("chartqa",), budgets=(1,), seeds=(0,), reference="a"),
        [
            Score(
                benchmark="chartqa", method="a", budget=1, seed=0, score=50, metric="m",
                artifact="",
                items=items_by_source((str(number), s) for number, s in enumerate(scores)),
            )
        ],
        {},
    ).sections[0].cells[0]  # fmt: skip
    assert cell.low is not None
    assert cell.high is not None
    assert alone.low is not None
    assert alone.high is not None
    assert cell.high - cell.low > 1.5 * (alone.high - alone.low)


def test_means_over_benchmarks_have_the_models_that_have_all(tmp_path: Path):
    _write_all(tmp_path, _scores(1))
    write_evaluation(tmp_path / "logs", "other", _scores(2))
    questions = {"chartqa": _questions(), "toy": _questions("toy")}
    # The questions of both benchmarks are the same here: a log is of each, unless its task has the
    # name of one, as lmms-eval's.
    report = add_logs(_report(), PLAN, read_logs([tmp_path]), questions, SAME)
    means = {(a.method, a.budget): a.mean for a in report.aggregates}
    assert means["eee", NO_BUDGET] == pytest.approx(100 * sum(_scores(1)) / NUM)
    assert means["lmms", NO_BUDGET] is None
    assert (
        means["parcel", 16]
        == {(a.method, a.budget): a.mean for a in _report().aggregates}["parcel", 16]
    )
    pairs = {(c.method, c.other, c.budget) for c in report.comparisons}
    assert {("parcel", "eee", 16), ("other", "eee", NO_BUDGET)} <= pairs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": _scores(1)[1:]}, r"is not of chartqa: it must have 40 questions, got 39"),
        ({"texts": ["Count."] * NUM}, r"question of item 0 is none of its own, got 'Count\.'"),
        ({"targets": [["5"]] * NUM},
         r"target of item 0 must be one of 'four, 4' as in chartqa/039, got '5'"),
        ({"metric": "score"}, r"metric must be 'relaxed_accuracy' as in chartqa, got 'score'; .*"
                              r"--same-metric 'score=relaxed_accuracy'"),
        ({"model": "parcel"}, r"model must have another name than a method of the study"),
    ],
)  # fmt: skip
def test_what_cannot_be_matched_is_refused(tmp_path: Path, change: dict, message: str):
    write_evaluation(tmp_path, **{"model": "a", "scores": _scores(1), **change})
    with pytest.raises(ItemLogError, match=message):
        _add(tmp_path)


def test_ids_of_ours_match_whatever_the_prompt_adds(tmp_path: Path):
    asked = [f"How many? {number}" for number in range(NUM)]
    values: dict[str, Any] = {
        "ids": [question.id for question in _questions()][::-1],
        "texts": [""] * NUM,
        "prompts": [f"{question}\nAnswer with a number." for question in asked],
        "targets": [["4", "vier"]] * NUM,
    }
    write_evaluation(tmp_path, "a", _scores(1), **values)
    section = _add(tmp_path).sections[0]
    assert section.cell("a", NO_BUDGET).mean == pytest.approx(100 * sum(_scores(1)) / NUM)
    wrong: dict[str, Any] = values | {"prompts": [*asked[:3], "Why?", *asked[4:]]}
    write_evaluation(tmp_path, "a", _scores(1), **wrong)
    with pytest.raises(ItemLogError, match=r"question .*chartqa/036 .*'How many\? 3'"):
        _add(tmp_path)
    wrong = values | {"targets": [["4"]] * 3 + [["5"]] + [["4"]] * (NUM - 4)}
    write_evaluation(tmp_path, "a", _scores(1), **wrong)
    with pytest.raises(ItemLogError, match=r"target .*chartqa/036 .*'four, 4'"):
        _add(tmp_path)


def test_questions_that_are_not_unique_need_our_ids(tmp_path: Path):
    asked = [f"How many? {7 if number == 34 else number}" for number in range(NUM)]
    write_evaluation(tmp_path, "a", _scores(1), texts=asked)
    twice = [
        dataclasses.replace(question, prefix="answer en How many? 7")
        if question.id == "chartqa/005" else question
        for question in _questions()
    ]  # fmt: skip
    with pytest.raises(ItemLogError, match=r"item 34 may be chartqa/005 or chartqa/032, whose"):
        add_logs(_report(), PLAN, read_logs([tmp_path]), {"chartqa": twice}, SAME)


def test_a_run_of_the_store_is_shown_beside_logs(tmp_path: Path):
    store = Store(tmp_path / "store")
    results_of(store, study(store), tmp_path)
    write_evaluation(
        tmp_path / "logs", "theirs", [1.0, 0.0, 1.0, 0.0], metric="relaxed",
        ids=list(QUESTIONS), texts=list(QUESTIONS.values()), targets=[["yes"]] * len(QUESTIONS),
    )  # fmt: skip
    run = OwnRun(store=store, run="mine", same_metrics={"relaxed": "relaxed_accuracy"})
    text = show_logs([tmp_path / "logs"], "md", beside=run)
    assert "| theirs |  | 50.0 |" in text
    # The run's data has no records to score answers with.
    assert "Scores of theirs on chartqa are its log's own, since relaxed_accuracy could not" in text
    assert "vanilla − theirs" in text
    csv = show_logs([tmp_path / "logs"], "comparisons", beside=run)
    assert f"parcel,theirs,{GATHER_PLAN.budgets[0]},chartqa," in csv
    with pytest.raises(ConfigError, match=r"--predictions: .*metric must be 'relaxed_accuracy'"):
        show_logs([tmp_path / "logs"], "md", beside=dataclasses.replace(run, same_metrics={}))


def test_comparisons_of_models_without_budgets_are_written_as_numbers(tmp_path: Path):
    _write_all(tmp_path, _scores(1))
    lines = comparisons_to_csv(_add(tmp_path)).splitlines()
    assert any(line.startswith("eee,lmms,0,chartqa,") for line in lines)


@pytest.fixture(scope="module")
def colors(tmp_path_factory: pytest.TempPathFactory) -> OwnRun:
    """A run whose records are in its store; answers are names of colors."""
    store = Store(tmp_path_factory.mktemp("colors"))
    write_study(
        store, benchmarks=("colors",), methods=("vanilla", "parcel"), seeds=(11, 23), num_items=6
    )
    return OwnRun(store=store, run="toy")


RIGHT = ["red", "green", "blue"] * 2


def _beside_colors(
    folder: Path, colors: OwnRun, answers: Sequence[Any], scores: Sequence[float], form: str = "md"
) -> str:
    write_evaluation(
        folder, "theirs", scores, metric="exact_match", answers=answers,
        ids=[f"colors/{i:03}" for i in range(6)], texts=["which color?"] * 6,
        targets=[[color] for color in RIGHT],
    )  # fmt: skip
    return show_logs([folder], form, beside=colors)


@pytest.mark.parametrize(
    ("answers", "scores", "score", "note"),
    [
        (["no idea"] * 6, [1.0] * 6, "0.0", "0.0, where its log has 100.0; 6 of 6 items differ."),
        (RIGHT, [0.0] * 6, "100.0", "100.0, where its log has 0.0; 6 of 6 items differ."),
        (["red"] * 6, [1.0, 0.0, 0.5] * 2, "33.3",
         "33.3, where its log has 50.0; 2 of 6 items differ."),
        (["red"] * 6, [1.0, 0.0, 0.0] * 2, "33.3", None),
    ],
)  # fmt: skip
def test_answers_are_scored_again_by_our_metric(
    tmp_path: Path, colors: OwnRun, answers: list[str], scores: list[float], score: str,
    note: str | None,
):  # fmt: skip
    text = _beside_colors(tmp_path, colors, answers, scores)
    assert f"| theirs |  |  | {score} |" in text
    said = "Answers of theirs on colors are scored again by exact_match: "
    assert (said in text) == (note is not None)
    assert note is None or said + note in text
    # In every format, and in the differences.
    csv = _beside_colors(tmp_path, colors, answers, scores, "csv")
    (line,) = (line for line in csv.splitlines() if line.startswith("colors,theirs,0,"))
    assert line.split(",")[3].startswith(score)
    compared = _beside_colors(tmp_path, colors, ["no idea"] * 6, [1.0] * 6, "comparisons")
    (line,) = (entry for entry in compared.splitlines() if entry.startswith("parcel,theirs,16,"))
    assert float(line.split(",")[4]) > 0


def test_answers_that_are_no_texts_keep_their_scores_with_a_note(tmp_path: Path, colors: OwnRun):
    text = _beside_colors(tmp_path, colors, [*RIGHT[:5], ["blue", "red"]], [1.0] * 6)
    assert "| theirs |  |  | 100.0 |" in text
    assert (
        "Scores of theirs on colors are its log's own, since exact_match could not score its "
        "answers again: the answer to colors/005 is no text."
    ) in text


def test_a_metric_has_all_fields_of_our_records():
    (question,) = (q for q in _questions() if q.id == "chartqa/000")
    item = LoggedItem(
        id=question.id, source="", question="", prompt="", target="", score=0.0,
        answer="It may be A, so the answer is (B).",
    )  # fmt: skip
    log = ItemLog(file="f", model="a", task="t", metric="mmmu", split="", items=(item,))
    fields = {question.id: {"id": question.id, "answers": ["B"], "options": ["red", "blue"]}}
    assert [scored.score for scored in score_again(log, "mmmu", fields).items] == [1.0]


def test_masks_are_scored_again_with_the_codec_of_the_run(tmp_path: Path):
    store = Store(tmp_path / "store")
    write_study(store, benchmarks=("shapes",), seeds=(11, 23), num_items=6, metric="miou")
    records = [mask_record(number) for number in range(6)]
    drawn = [record.suffixes[0].replace("<mask>", MASK) for record in records]
    answers = ["no idea"] * 3 + drawn[3:]
    write_evaluation(
        tmp_path / "logs", "theirs", [1.0] * 6, metric="miou", answers=answers,
        ids=[record.id for record in records], texts=["segment it"] * 6, targets=[[]] * 6,
    )  # fmt: skip
    text = show_logs([tmp_path / "logs"], "md", beside=OwnRun(store=store, run="toy"))
    params = init_params(MaskCodecConfig(width=8), 2)
    decode = MaskCodec({name: np.asarray(value) for name, value in params.items()}).decode
    fields = [{**fields_of(record), "decode_mask": decode} for record in records]
    ious = [miou(*pair).score for pair in zip(drawn[3:], fields[3:], strict=True)]
    assert sum(ious) > 0
    assert (
        f"Answers of theirs on shapes are scored again by miou: {100 * sum(ious) / 6:.1f}, where "
        f"its log has 100.0; 6 of 6 items differ."
    ) in text
