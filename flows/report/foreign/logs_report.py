"""Builds a report of other systems' items: the same intervals, pairing and clusters as our own."""

from collections.abc import Sequence
from pathlib import Path

from flows.report.build import build_report
from flows.report.cell_text import MISSING
from flows.report.cells import NO_BUDGET, Plan, Report, Score
from flows.report.foreign import inspect_ai, lmms_eval, vlmevalkit
from flows.report.foreign.item_log import ItemLog, ItemLogError
from flows.report.items import items_by_source, mean_item_score

FORMATS = {"lmms-eval": lmms_eval, "inspect_ai": inspect_ai, "VLMEvalKit": vlmevalkit}
"""Formats that are read: name -> module with `find_logs`, `read_log` and `FILES`, for a message."""


def read_logs(folders: Sequence[Path]) -> list[ItemLog]:
    """Returns every log below some folders, in order of folder and path.

    Raises:
      ItemLogError: if a folder has none, or one cannot be read.
    """
    logs = []
    for folder in folders:
        if not folder.is_dir():
            raise ItemLogError(f"{folder}: is no folder; name one that holds item logs.")
        files = [(form, path) for form in FORMATS.values() for path in form.find_logs(folder)]
        if not files:
            raise ItemLogError(
                f"{folder}: holds no item log; read are those of "
                f"{', '.join(f'{name} ({form.FILES})' for name, form in FORMATS.items())}."
            )
        try:
            logs += [form.read_log(path) for form, path in files]
        except OSError as error:
            raise ItemLogError(f"{error.filename}: {error.strerror}.") from None
    return logs


def report_logs(logs: Sequence[ItemLog]) -> Report:
    """Returns the report of some logs: models are its methods and tasks its benchmarks.

    Differences are paired item by item. Retention is against the first model.

    Raises:
      ItemLogError: if a model has a task twice, or two logs of a task differ in metric, split,
        questions, prompts, targets or pictures. What a log does not say is not compared.
    """
    logs_of_task: dict[str, list[ItemLog]] = {}
    files: dict[tuple[str, str], str] = {}
    scores, unknown = [], []
    for log in logs:
        # Two logs of one model need not be two seeds: one may be a copy or a correction.
        if other := files.get((log.model, log.task)):
            raise ItemLogError(
                f"{log.file}: {log.model} has {log.task} in {other}, too; leave one out."
            )
        files[log.model, log.task] = log.file
        # With each, not with the first alone: a log may lack what two others differ in.
        for other_log in logs_of_task.setdefault(log.task, []):
            _check_comparable(log, other_log)
        logs_of_task[log.task].append(log)
        if not all(item.source for item in log.items):
            unknown.append(log.task)
        # An item without a picture is a source by itself, which no picture's name can be.
        items = items_by_source((item.source or f"\0{item.id}", item.score) for item in log.items)
        scores.append(
            Score(
                benchmark=log.task,
                method=log.model,
                budget=NO_BUDGET,
                seed=0,
                score=mean_item_score(items),
                metric=log.metric,
                artifact="",
                items=items,
            )
        )
    models = tuple(dict.fromkeys(log.model for log in logs))
    plan = Plan(
        methods=models,
        benchmarks=tuple(logs_of_task),
        budgets=(NO_BUDGET,),
        seeds=(0,),
        reference=models[0],
    )
    notes = [f"Read from item logs; @{MISSING} stands for their unknown number of tokens."]
    if unknown:
        notes.append(
            f"The logs of {', '.join(dict.fromkeys(unknown))} do not name the items' pictures: "
            f"each item counts as independent, so intervals are too narrow where items share one."
        )
    return build_report(plan, scores, {}, notes=notes)


def _check_comparable(log: ItemLog, first: ItemLog) -> None:
    """Refuses a log whose scores answer another question than another log's of its task."""
    for field in ("metric", "split"):
        ours, theirs = getattr(log, field), getattr(first, field)
        if ours and theirs and ours != theirs:
            raise ItemLogError(
                f"{log.file}: {field} must be {theirs!r} as in {first.file}, got {ours!r}."
            )
    of_first = {item.id: item for item in first.items}
    ids = {item.id for item in log.items}
    if ids != of_first.keys():
        apart = sorted(ids ^ of_first.keys())
        raise ItemLogError(
            f"{log.file}: questions must be those of {first.file}, got {len(ids)} and "
            f"{len(of_first)}, of which {len(apart)} are in one only, such as {apart[0]}."
        )
    for item in log.items:
        for field in ("question", "prompt", "target", "source"):
            ours, theirs = getattr(item, field), getattr(of_first[item.id], field)
            # Sources are compared where one is unknown, too: items are paired source by source.
            if ours != theirs and (field == "source" or (ours and theirs)):
                raise ItemLogError(
                    f"{log.file}: {field} of item {item.id} must be {theirs!r:.80} as in "
                    f"{first.file}, got {ours!r:.80}."
                )
