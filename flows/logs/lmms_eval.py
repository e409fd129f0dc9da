"""Reads what lmms-eval writes with `--log_samples`.

    MODEL/DATE_results.json          means of each task, "METRIC,FILTER", and the tasks' configs
    MODEL/DATE_samples_TASK.jsonl    a line per question

Source: lmms-eval, lmms_eval/loggers/evaluation_tracker.py (`save_results_samples`).
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.logs.item_log import ItemLog, ItemLogError, LoggedItem
from flows.logs.log_checks import (
    MEAN_TOLERANCE,
    is_number,
    object_member,
    optional_object,
    parse_object,
    picture_of,
    sorted_items,
    text_of,
)
from flows.logs.settings import may_be_lower_better, stated_settings

SAMPLES = "_samples_"
RESULTS_END = "_results.json"
FILES = f"*{SAMPLES}TASK.jsonl beside *{RESULTS_END}"
"""What is read, for a message."""

SPREAD_ENDS = ("_stderr", "_clt", "_clustered")
"""Ends of the names of numbers that are no means."""


_DEFAULT_FILTERS = [{"name": "none", "filter": [{"function": "take_first"}]}]
"""Filters of a task whose config names none."""

_METRIC_OPTIONS = {"ignore_case": False, "ignore_punctuation": False}
"""Options of a metric in a list of metrics that does not state them."""

_OF_TASKS = ("configs", "versions", "n-shot", "n-samples", "higher_is_better")
"""Members of the results that have a value for each task."""


def find_logs(folder: Path) -> list[Path]:
    """Returns the files of samples below a folder, in order of path."""
    return sorted(folder.rglob(f"*{SAMPLES}*.jsonl"))


def read_log(path: Path) -> ItemLog:
    """Returns the items of one model on one task.

    The metric is the first in the task's results that has a number in 0-1 for every question,
    whose mean is the task's own; one of which lower is better comes last.

    Raises:
      ItemLogError: if a file lacks what is read, or no metric can be read item by item.
    """
    date, task = path.name.removesuffix(".jsonl").split(SAMPLES, 1)
    results_file = path.with_name(date + RESULTS_END)
    if not results_file.is_file():
        raise ItemLogError(f"{path}: needs {results_file.name} beside it, which has the model.")
    results = parse_object(results_file.read_bytes(), str(results_file))
    all_means = object_member(results, "results", results_file)
    means = object_member(all_means, task, f"{results_file}: results")
    model = results.get("model_name")
    if not isinstance(model, str) or not model:
        raise ItemLogError(f"{results_file}: model_name must be a text, got {model!r}.")

    # A line per question; blank ones do not count.
    rows = [
        (number, parse_object(line, f"{path} line {number}"))
        for number, line in enumerate(path.read_bytes().splitlines(), start=1)
        if line.strip()
    ]
    if not rows:
        raise ItemLogError(f"{path}: has no question.")
    metric, answer_filter, rows = _readable_metric(results, task, means, rows, path)
    settings = _task_settings(results, task, metric, answer_filter)
    return ItemLog(
        file=str(path),
        model=model,
        task=task,
        metric=metric,
        split=str(settings.pop("split", "")),
        items=sorted_items(
            (
                (f"{path} line {number}", _lmms_eval_item(row, metric, f"{path} line {number}"))
                for number, row in rows
            ),
            "doc_id",
        ),
        settings=settings,
    )


def _readable_metric(
    results: Mapping[str, Any],
    task: str,
    means: Mapping[str, Any],
    rows: Sequence[tuple[int, Mapping[str, Any]]],
    path: Path,
) -> tuple[str, str, list[tuple[int, Mapping[str, Any]]]]:
    """Returns the first metric whose numbers, question by question, have the mean that is stated.

    With it are its filter and the lines of that filter. One of which lower may be better comes
    after all others.

    Raises:
      ItemLogError: if there is none with a number in 0-1 for every question.
    """
    # "relaxed,none": the metric and the filter of the answers.
    keys = [tuple(key.partition(",")[::2]) for key, mean in means.items() if is_number(mean)]
    found = [(name, of) for name, of in keys if not name.endswith(SPREAD_ENDS)]
    found.sort(key=lambda key: may_be_lower_better(key[0], _task_settings(results, task, *key)))
    for name, of in found:
        mean = means[f"{name},{of}" if of else name]
        # Lines without a filter count for all.
        of_filter = [row for row in rows if row[1].get("filter") in (None, of or "none")]
        values = [row.get(name) for _, row in of_filter]
        numbers = [float(value) for value in values if is_number(value)]
        if (
            0 < len(numbers) == len(values)
            and all(0 <= number <= 1 for number in numbers)
            and math.isclose(statistics.fmean(numbers), mean, abs_tol=MEAN_TOLERANCE)
        ):
            return name, of, of_filter
    filters = [of or "none" for _, of in found]
    if filters and all(row.get("filter") not in (None, *filters) for _, row in rows):
        raise ItemLogError(
            f"{path}: filter of a line must be that of one of the task's means, "
            f"{', '.join(dict.fromkeys(filters))}, got {rows[0][1]['filter']!r:.60}."
        )
    raise ItemLogError(
        f"{path}: needs a metric with a number in 0-1 for every question whose mean is the task's "
        f"own, got {', '.join(dict.fromkeys(name for name, _ in found)) or 'none'}."
    )


def _task_settings(
    results: Mapping[str, Any], task: str, metric: str, answer_filter: str
) -> dict[str, Any]:
    """Returns the settings that the results state for a task."""
    of_task = {name: optional_object(results, name).get(task) for name in _OF_TASKS}
    config, of_run = optional_object(of_task, "configs"), optional_object(results, "config")
    if "dataset_path" in config:
        # A config is written whole, but for what is null.
        filters = config.get("filter_list") or _DEFAULT_FILTERS
        config = {"dataset_name": None, **config, "filter_list": filters}
    metrics = _task_setting_entries(config, "metric_list", "metric", metric)
    version = results.get("lmms_eval_version")
    return stated_settings(
        {
            **_members(of_task, "versions", "n-shot", "n-samples"),
            **config,
            # Shots that the prompt itself has are counted where none is added.
            "num_fewshot": config.get("num_fewshot") or _written_shots(config),
            "test_split": config.get("test_split") or config.get("validation_split"),
            # Of several metrics and filters, those that made this score.
            "metric_list": [{**_METRIC_OPTIONS, **entry} for entry in metrics],
            "metric": {
                "higher_is_better": optional_object(of_task, "higher_is_better").get(metric)
            },
            "filter_list": _task_setting_entries(config, "filter_list", "name", answer_filter),
            "filter": answer_filter,
            **_members(of_run, "gen_kwargs", "offset", "fewshot_seed"),
            "limit": of_run.get("limit") or ("none" if "limit" in of_run else None),
            **_members(results, "system_instruction", "fewshot_as_multiturn"),
            "evaluator": f"lmms-eval {version}" if version else None,
            "model": of_run.get("model_args"),
        },
        null=True,
    )


def _members(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _written_shots(config: Mapping[str, Any]) -> Any:
    metadata = config.get("metadata")
    parts = metadata if isinstance(metadata, list) else [metadata]
    shots = (part.get("num_fewshot") for part in parts if isinstance(part, dict))
    return next(shots, None) or config.get("num_fewshot")


def _task_setting_entries(
    config: Mapping[str, Any], field: str, key: str, name: str
) -> list[dict[str, Any]]:
    entries = config.get(field)
    entries = entries if isinstance(entries, list) else []
    return [entry for entry in entries if isinstance(entry, dict) and entry.get(key) == name]


def _lmms_eval_item(row: Mapping[str, Any], metric: str, place: str) -> LoggedItem:
    if "doc_id" not in row:
        raise ItemLogError(f"{place}: doc_id is missing.")
    # lmms-eval drops `doc` before it writes, and with it the picture's name: only logs to which
    # somebody added it have clusters.
    doc = row.get("doc")
    question = doc if isinstance(doc, dict) else {}
    # One answer per request: a list of lists or of texts.
    answer = row.get("filtered_resps")
    while isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    digest, prompt, target = (text_of(row.get(of)) for of in ("doc_hash", "input", "target"))
    digests = {f"{of}_digest": text_of(row.get(f"{of}_hash")) for of in ("prompt", "target")}
    return LoggedItem(
        id=str(row["doc_id"]),
        source=picture_of(question),
        question=digest,
        prompt=prompt,
        target=target,
        # The digest tells more than the words: it is of the data, mostly with an id in them.
        alike=digest or (prompt and f"{prompt}\0{target}"),
        answer=answer if isinstance(answer, str) else None,
        score=float(row[metric]),
        text=text_of(question.get("question")),
        **digests,
    )
