"""Reads what lmms-eval writes with `--log_samples`.

    MODEL/DATE_results.json          means of each task, "METRIC,FILTER", and the tasks' configs
    MODEL/DATE_samples_TASK.jsonl    a line per question

Source: lmms-eval, lmms_eval/loggers/evaluation_tracker.py (`save_results_samples`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.logs.item_log import ItemLog, ItemLogError, LoggedItem
from flows.logs.log_checks import (
    metric_of_means,
    object_member,
    parse_object,
    picture_of,
    sorted_items,
)

SAMPLES = "_samples_"
RESULTS_END = "_results.json"
FILES = f"*{SAMPLES}TASK.jsonl beside *{RESULTS_END}"
"""What is read, for a message."""

SPREAD_ENDS = ("_stderr", "_clt", "_clustered")
"""Ends of the names of numbers that are no means."""


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
    results_file = path.with_name(date + RESULTS_END)
    if not results_file.is_file():
        raise ItemLogError(f"{path}: needs {results_file.name} beside it, which has the model.")
    results = parse_object(results_file.read_bytes(), str(results_file))
    all_means = object_member(results, "results", results_file)
    means = object_member(all_means, task, f"{results_file}: results")
    configs = results.get("configs")
    config = configs.get(task) if isinstance(configs, dict) else None
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
    metric = metric_of_means(
        # "relaxed,none": the metric and the filter of the answers.
        [
            (name, means[key])
            for key in means
            if not (name := key.split(",")[0]).endswith(SPREAD_ENDS)
        ],
        lambda name: [row.get(name) for _, row in rows],
        path,
    )
    return ItemLog(
        file=str(path),
        model=model,
        task=task,
        metric=metric,
        split=str(config.get("test_split") or "") if isinstance(config, dict) else "",
        items=sorted_items(
            (
                (f"{path} line {number}", _logged_item(row, metric, f"{path} line {number}"))
                for number, row in rows
            ),
            "doc_id",
        ),
    )


def _logged_item(row: Mapping[str, Any], metric: str, place: str) -> LoggedItem:
    if "doc_id" not in row:
        raise ItemLogError(f"{place}: doc_id is missing.")
    # lmms-eval drops `doc` before it writes, and with it the picture's name: only logs to which
    # somebody added it have clusters.
    doc = row.get("doc")
    question = doc if isinstance(doc, dict) else {}
    # One answer per request: a list of lists or of texts.
    answers = row.get("filtered_resps", "")
    while isinstance(answers, list) and len(answers) == 1:
        answers = answers[0]
    return LoggedItem(
        id=str(row["doc_id"]),
        source=picture_of(question),
        question=str(row.get("doc_hash", "")),
        prompt=str(row.get("input", "")),
        target=str(row.get("target", "")),
        answer=str(answers),
        score=float(row[metric]),
        text=str(question.get("question", "")),
    )
