"""Settings of an evaluation that logs state, of which two logs of a task must have the same."""

import ast
import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flows.logs.item_log import ItemLog, ItemLogError
from flows.report.cells import NO_BUDGET
from flows.report.text_lists import abbreviate_list

_HIGHER, _LOWER = "higher is better", "lower is better"
_USUALLY_LOWER = re.compile(
    r"(?<![a-z])(wer|cer|ter|eer|n?r?mse|mae|mape|loss|nll|ppl|fid|fvd|lpips|err|dist|ned|ece|fpr|fnr"
    r"|asr|bias|brier|chair_?[is]?|l[12])(?![a-z0-9])"
    r"|error|perplexity|bits_per_byte|hallucinat|distance|latency|toxic|unsafe|harmful|violation"
    r"|false[_ -]?(positive|negative)|attack[_ -]?success"
)
"""Parts of the names of metrics of which lower is usually better."""

_EVALUATOR = "evaluator"
"""The evaluation system with its version, in which two logs may differ."""

SCORER = "metric.scorer"
"""What scored the items, where the metric is a statistic of its scores, such as `mean`."""

_MODEL = "model."
"""Start of the names of a model's own options, in which two logs may differ, too."""

_OF_ONE_MODEL = (
    "pretrained",
    "model",
    "path",
    "name",
    "revision",
    "device",
    "batch",
    "attn",
    "dtype",
)
"""Parts of names of options that say which model it is and where it runs."""

EXPECTED = (
    *("direction", "filter", "version", "few-shot", "generation"),
    *("dataset", "split", "limit"),
    *("questions", "questions.prompt", "questions.target", "questions.digest"),
)
"""What decides scores, whether or not a format has a field for it; the items have the questions."""

_NAMES = {
    # lmms-eval
    "dataset_path": "dataset.path",
    "dataset_name": "dataset.config",
    "dataset_kwargs": "dataset",
    "test_split": "split",
    "metric_list": "metric",
    "metadata.version": "version",
    "versions": "version",
    "n-samples.original": "limit.samples",
    "num_fewshot": "few-shot",
    "n-shot": "few-shot",
    "generation_kwargs": "generation",
    "gen_kwargs": "generation",
    # Every Eval Ever
    "source_data": "dataset",
    "metric_config": "metric",
    "generation_config": "generation",
    "dataset.dataset_name": "dataset.name",
    "dataset.hf_repo": "dataset.path",
    "dataset.hf_split": "split",
    "dataset.split": "split",
    "dataset.samples_number": "limit.samples",
    "generation.num_fewshot": "few-shot",
    "dataset.additional_details": "dataset",
    "metric.additional_details": "metric",
    "generation.additional_details": "generation",
    "generation.generation_args": "generation",
    "generation.gen_kwargs": "generation",
}
"""Place of a value in a log -> the setting that it is, which other formats place elsewhere."""

_NO_SETTINGS = {
    # Names for people, splits that nobody is scored on, and what a reader tells by itself.
    "task",
    "task_alias",
    "tag",
    "group",
    "group_alias",
    "training_split",
    "validation_split",
    "metric.metric",
    "metric.metric_id",
    "metric.metric_name",
    "metric.metric_id_status",
    "metric.metric_id_registry_revision",
    "metric.bounds_status",
    "metric.polarity",
    "n-samples.effective",
    # Where data lie and how they are fetched; what they are is compared item by item.
    "dataset.token",
    "dataset.cache_dir",
    "dataset.source_type",
    "dataset.sample_ids",
    "dataset.data",
    "dataset.data_sha256",
    "dataset.inspect_dataset_location",
    # Of one model or machine: its command, our budget, and how requests are sent.
    "generation.execution_command",
    "generation.budget",
    "generation.timeout",
    "generation.max_connections",
    "generation.max_retries",
}

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Where a function lay in memory, in Python's text of it."""


_STATED_ONCE = {
    "direction": "higher_is_better and lower_is_better must be true or false and say the same",
    "version": "version must be the same in versions and in the config's metadata",
    "few-shot": "few-shot must be the same in n-shot and in num_fewshot",
}
"""Settings of which no place in a log counts before another -> what is told where two differ."""

_WHOLES = {*EXPECTED, "limit.samples", "n-samples", "metric", "filter_list", "model", _EVALUATOR}
"""Names that say nothing where their value is empty, and that a log may have beside parts of them.

An empty `gen_kwargs` adds no option, and without a version a task may have any.
"""


def stated_settings(fields: Mapping[str, Any], *, null: bool = False) -> dict[str, Any]:
    """Returns the settings in some fields of a log, such as {"generation.temperature": 0}.

    An empty text, list or object is "", except in `_WHOLES`, of which it says nothing. A setting
    that must be stated once, and has several values, is a tuple of them.

    Args:
      fields: name in a log -> value.
      null: whether null says that there is none, as an empty text does; else it is not stated.
    """
    stated, once = dict[str, Any](), dict[str, dict[Any, None]]()
    for name, value in _logged_setting_leaves("", fields):
        is_empty = value in (None, "", [], {})
        if name in _NO_SETTINGS or (is_empty and (name in _WHOLES or (value is None and not null))):
            continue
        # Later places count, as a run's options do.
        stated[name] = "" if is_empty else _plain_setting_value(value)
        if name in _STATED_ONCE:
            values = once.setdefault(name, {})
            values[stated[name]] = None
            stated[name] = tuple(values) if len(values) > 1 else stated[name]
    return stated


def _logged_setting_leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if name in ("generation", "model") and isinstance(value, str):
        value = _parse_setting_parts(value)
    if isinstance(value, Mapping) and value:
        for key, member in value.items():
            path = f"{name}.{key}".removeprefix(".")
            if name == "model" and any(part in key.lower() for part in _OF_ONE_MODEL):
                continue
            yield from _logged_setting_leaves(_NAMES.get(path, path), member)
    elif name in ("metric.higher_is_better", "metric.lower_is_better"):
        if isinstance(value, bool):
            yield "direction", _HIGHER if value == (name == "metric.higher_is_better") else _LOWER
        elif value is not None:
            yield "direction", f"{name.partition('.')[2]} {value!r:.60}"
    # lmms-eval's versions of tasks without one.
    elif value not in ("Yaml", "N/A"):
        yield name, value


def _parse_setting_parts(text: str) -> Any:
    """Returns the parts of a text: "temperature=0.7,do_sample=True", JSON or Python's of a dict."""
    if isinstance(value := _parse_setting_literal(text), dict):
        return value
    # A comma parts where another name follows; in a list of values it does not.
    parts = [part.partition("=") for part in re.split(r",(?=[^,=]+=)", text.strip(" ,"))]
    if not all(equals for _, equals, _ in parts):
        return text
    return {name.strip(): _parse_setting_literal(value) for name, _, value in parts}


def _parse_setting_literal(text: str) -> Any:
    """Returns the value that a text is in JSON or Python; the text itself if it is none."""
    for parse in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return parse(text)
    return text


def _plain_setting_value(value: Any) -> Any:
    """Returns a value as all formats have it: "5" is 5, and functions have no address."""
    is_list = isinstance(value, list)
    text = json.dumps(value, sort_keys=True, default=str) if is_list else value
    if not isinstance(text, str):
        return text
    with contextlib.suppress(ValueError, RecursionError):
        # Only what is written in the same way: the versions "1.1" and "1.10" are two.
        parsed = json.loads(text.lower())
        if isinstance(parsed, bool | int | float) and str(parsed).lower() == text.lower():
            return parsed
    return _ADDRESS.sub("", text)


def may_be_lower_better(metric: str, settings: Mapping[str, Any]) -> bool:
    """Returns whether lower scores of a metric may be better, as stated, or else by its name.

    The name of what scored the items counts, too: a mean is of something.
    """
    if direction := settings.get("direction"):
        return direction != _HIGHER
    return bool(_USUALLY_LOWER.search(f"{metric} {settings.get(SCORER, '')}".lower()))


def difference_error(file: str, field: str, got: Any, expected: Any, other: str) -> ItemLogError:
    """Returns the error that a field of a log is another than in another log."""
    texts = [repr(expected), repr(got)]
    # Of long texts, the part where they differ.
    pairs = enumerate(zip(*texts, strict=False))
    start = max(next((place for place, (a, b) in pairs if a != b), 0) - 40, 0)
    first, second = (f"{'…' if start else ''}{text[start : start + 80]}" for text in texts)
    return ItemLogError(f"{file}: {field} must be {first} as in {other}, got {second}.")


def check_settings(logs: Iterable[ItemLog]) -> None:
    """Refuses logs of one task that state different settings, or whose lower scores are better.

    Raises:
      ItemLogError: with the setting, both values and both files; or if a log states no direction
        but its metric's name does.
    """
    # Each log is held against all settings that the ones before it stated, not against the first
    # log alone: what that one leaves out, two others may state differently. A block that one log
    # states whole and another in parts cannot be compared, so it counts as different.
    stated: dict[str, tuple[Any, str]] = {}
    lower = None
    for log in logs:
        _check_stated_once(log)
        before = [*stated.items()]
        for name, value in _compared_settings(log).items():
            for other, (first, file) in before:
                same = name == other or _is_part(name, other) or _is_part(other, name)
                if same and value != first and name != _EVALUATOR:
                    raise difference_error(log.file, name, value, first, file)
            stated.setdefault(name, (value, log.file))
        lower = log if may_be_lower_better(log.metric, log.settings) else lower
    if lower and "direction" not in stated:
        scorer = lower.settings.get(SCORER)
        name = lower.metric if scorer in (None, lower.metric) else f"{lower.metric} of {scorer}"
        raise ItemLogError(
            f"{lower.file}: nothing says that more is better, and {name!r} is usually one "
            f"of which lower is better: the best here may be the worst; if more is better, state "
            f"higher_is_better: true for it, in Every Eval Ever in its metric_config."
        )
    if lower and stated["direction"][0] == _LOWER:
        raise ItemLogError(
            f"{lower.file}: metric must be one whose higher values are better, got "
            f"{lower.metric!r}, of which lower is better; in tables, more is better."
        )


def _check_stated_once(log: ItemLog) -> None:
    for name, rule in _STATED_ONCE.items():
        value = log.settings.get(name)
        values = value if isinstance(value, tuple) else (value,)
        is_other = name == "direction" and value not in (None, _HIGHER, _LOWER)
        if len(values) > 1 or is_other:
            raise ItemLogError(f"{log.file}: {rule}, got {' and '.join(map(str, values))}.")


def _is_part(name: str, whole: str) -> bool:
    """Returns whether a setting is a part of another, such as "options.prompt" of "options"."""
    return name.startswith(f"{whole}.") and whole not in _WHOLES


def settings_notes(tasks: Mapping[str, list[ItemLog]]) -> list[str]:
    """Returns notes on what logs do not state, on parts of a dataset, and on several libraries.

    Args:
      tasks: task -> its logs.
    """
    notes, unstated = list[str](), dict[str, list[str]]()
    for task, logs in tasks.items():
        if missing := _unstated_settings(logs):
            unstated.setdefault(abbreviate_list(missing, len(EXPECTED)), []).append(task)
        num = len(logs[0].items)
        stated = {name: value for log in logs for name, value in log.settings.items()}
        total, limit = stated.get("limit.samples"), stated.get("limit", "none")
        if isinstance(total, int) and total > num:
            notes.append(f"Scores of {task} are over {num:,} of its {total:,} items.")
        elif total is None and limit != "none":
            notes.append(f"Scores of {task} are over the {num:,} items that its limit left.")
        evaluators = dict.fromkeys(str(log.settings.get(_EVALUATOR, "")) for log in logs)
        if len(names := [name for name in evaluators if name]) > 1:
            notes.append(f"Logs of {task} are of {' and '.join(names)}, which may score otherwise.")
        if options := _other_options(logs):
            notes.append(f"Models of {task} were asked with other options: {'; '.join(options)}.")
    return [
        f"Not stated by all logs of {', '.join(of)}, so nothing shows that they are the same: "
        f"{names}."
        for names, of in unstated.items()
    ] + notes


def _other_options(logs: list[ItemLog]) -> list[str]:
    """Returns the options of models that differ, as "max_frames_num 32 (m3), none (mqt)"."""
    of_logs = [log for log in logs if log.budget == NO_BUDGET]
    names = {name for log in of_logs for name in log.settings if name.startswith(_MODEL)}
    texts = list[str]()
    for name in sorted(names):
        models = dict[str, list[str]]()
        for log in of_logs:
            models.setdefault(str(log.settings.get(name, "none")), []).append(log.model)
        if len(models) > 1:
            values = [f"{value:.40} ({', '.join(of)})" for value, of in models.items()]
            texts.append(f"{name.removeprefix(_MODEL)} {', '.join(values)}")
    return texts


def _compared_settings(log: ItemLog) -> dict[str, Any]:
    fields = {
        "metric": log.metric,
        "split": log.split,
        # What is compared item by item, where both logs have it.
        "questions.prompt": all(item.prompt for item in log.items),
        "questions.target": all(item.target for item in log.items),
        "questions.digest": all(item.question for item in log.items),
        "questions.prompt_digest": all(item.prompt_digest for item in log.items),
        "questions.target_digest": all(item.target_digest for item in log.items),
    }
    settings = {n: value for n, value in log.settings.items() if not n.startswith(_MODEL)}
    return {**{name: value for name, value in fields.items() if value}, **settings}


def _unstated_settings(logs: list[ItemLog]) -> list[str]:
    # Logs of our own have all that decides their scores in their store.
    stated = [_compared_settings(log) for log in logs if log.budget == NO_BUDGET]
    names = dict.fromkeys((*EXPECTED, *(name for one in stated for name in one)))
    missing = [
        name
        for name in names
        if not name.endswith("_digest")
        and not all(any(f"{own}.".startswith(f"{name}.") for own in one) for one in stated)
        # Digests are compared where texts are missing.
        and not all(f"{name}_digest" in one for one in stated)
    ]
    # "generation" says "generation.temperature", too.
    return [name for name in missing if name == (root := name.split(".")[0]) or root not in missing]
