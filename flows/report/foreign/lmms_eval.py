"""Reads what lmms-eval writes with `--log_samples`.

    MODEL/DATE_results.json          means of each task, "METRIC,FILTER", and the tasks' configs
    MODEL/DATE_samples_TASK.jsonl    a line per question

Source: lmms-eval, lmms_eval/loggers/evaluation_tracker.py (`save_results_samples`).
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from flows.report.foreign.item_log import ItemLog, ItemLogError, LoggedItem
from infra.typed_json import parse_typed

SAMPLES = "_samples_"
RESULTS = "_results.json"
PICTURES = ("image_id", "img_id", "imageId", "image_path", "video_id", "video")
"""Fields of a logged question that name its picture or video, as datasets call them."""

TOLERANCE = 1e-6


def find_logs(folder: Path) -> list[Path]:
    """Returns the files of samples below a folder, in order of path."""
    return sorted(folder.rglob(f"*{SAMPLES}*.jsonl"))


def read_log(path: Path) -> ItemLog:
    """Returns the items of one model on one task.

    The metric is the first in the task's results that has a number in 0-1 for every question,
    whose mean is the task's own.

    Raises:
      ItemLogError: if a file lacks what is read, or no metric can be read item by item.
    """
    date, task = path.name.removesuffix(".jsonl").split(SAMPLES, 1)
    results_file = path.with_name(date + RESULTS)
    if not results_file.is_file():
        raise ItemLogError(f"{path}: needs {results_file.name} beside it, which has the model.")
    results = _parse_object(results_file.read_bytes(), str(results_file))
    means = _member(_member(results, "results", results_file), task, results_file)
    configs = results.get("configs")
    config = configs.get(task) if isinstance(configs, dict) else None
    model = results.get("model_name")
    if not isinstance(model, str) or not model:
        raise ItemLogError(f"{results_file}: model_name must be a text, got {model!r}.")

    # A line per question; blank ones do not count.
    rows = [
        (number, _parse_object(line, f"{path} line {number}"))
        for number, line in enumerate(path.read_bytes().splitlines(), start=1)
        if line.strip()
    ]
    if not rows:
        raise ItemLogError(f"{path}: has no question.")
    metric = _metric(means, [row for _, row in rows], path)
    items: dict[str, LoggedItem] = {}
    for number, row in rows:
        if "doc_id" not in row:
            raise ItemLogError(f"{path} line {number}: doc_id is missing.")
        item = _logged_item(row, metric)
        if item.id in items:
            raise ItemLogError(f"{path} line {number}: doc_id {item.id} is there twice.")
        items[item.id] = item
    return ItemLog(
        file=str(path),
        model=model,
        task=task,
        metric=metric,
        split=str(config.get("test_split") or "") if isinstance(config, dict) else "",
        items=tuple(items[name] for name in sorted(items)),
    )


def _logged_item(row: Mapping[str, Any], metric: str) -> LoggedItem:
    # lmms-eval drops `doc` before it writes, and with it the picture's name: only logs to which
    # somebody added it have clusters.
    question = row.get("doc")
    fields = question if isinstance(question, dict) else {}
    picture = next((fields[name] for name in PICTURES if name in fields), "")
    # One answer per request: a list of lists or of texts.
    answers = row.get("filtered_resps", "")
    while isinstance(answers, list) and len(answers) == 1:
        answers = answers[0]
    return LoggedItem(
        id=str(row["doc_id"]),
        source=str(picture),
        question=str(row.get("doc_hash", "")),
        prompt=str(row.get("input", "")),
        target=str(row.get("target", "")),
        answer=str(answers),
        score=float(row[metric]),
    )


def _metric(means: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], path: Path) -> str:
    """Returns the first metric whose numbers, item by item, have the mean that the task has."""
    names = []
    for key, mean in means.items():
        name = key.split(",")[0]
        if not _is_number(mean) or name.endswith(("_stderr", "_clt", "_clustered")):
            continue
        names.append(name)
        values = [row.get(name) for row in rows]
        numbers = [float(value) for value in values if _is_number(value)]
        if (
            len(numbers) == len(values)
            and all(0 <= number <= 1 for number in numbers)
            and math.isclose(statistics.fmean(numbers), mean, abs_tol=TOLERANCE)
        ):
            return name
    raise ItemLogError(
        f"{path}: needs a metric with a number in 0-1 for every question whose mean is the task's "
        f"own, got {', '.join(dict.fromkeys(names)) or 'none'}."
    )


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, bool | int | float)


def _parse_object(text: bytes, name: str) -> dict[str, Any]:
    try:
        return parse_typed(dict[str, Any], text, name)
    except ValueError as error:
        raise ItemLogError(str(error)) from None


def _member(values: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    value = values.get(name)
    if not isinstance(value, dict):
        raise ItemLogError(f"{path}: {name} must be an object with results, got {value!r:.60}.")
    return value
