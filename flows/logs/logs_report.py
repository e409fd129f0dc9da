"""Builds a report of other systems' items: the same intervals, pairing and clusters as our own."""

import re
from collections.abc import Sequence
from pathlib import Path

from flows.logs import every_eval_ever, lmms_eval
from flows.logs.item_log import ItemLog, ItemLogError, LoggedItem
from flows.logs.settings import check_settings, difference_error, settings_notes
from flows.report.build import build_report
from flows.report.cell_text import MISSING
from flows.report.cells import NO_BUDGET, Plan, Report, Score
from flows.report.items import items_by_source, mean_item_score

LOG_FORMATS = {
    "lmms-eval": lmms_eval,
    "Every Eval Ever": every_eval_ever,
}
"""Formats that are read: name -> module with `find_logs`, `read_log` and `FILES`, for a message."""


_DIGEST = re.compile(r"(\w+:)?[0-9a-fA-F]{32,128}")
"""A digest of a picture, such as "sha256:…"; names of pictures are shorter."""


def read_logs(folders: Sequence[Path]) -> list[ItemLog]:
    """Returns every log below some folders, in order of folder and path.

    Raises:
      ItemLogError: if a folder has none, or one cannot be read.
    """
    logs = []
    for folder in folders:
        if not folder.is_dir():
            raise ItemLogError(f"{folder}: is no folder; name one that holds item logs.")
        files = [(form, path) for form in LOG_FORMATS.values() for path in form.find_logs(folder)]
        if not files:
            raise ItemLogError(
                f"{folder}: holds no item log; read are those of "
                f"{', '.join(f'{name} ({form.FILES})' for name, form in LOG_FORMATS.items())}."
            )
        try:
            logs += [form.read_log(path) for form, path in files]
        except OSError as error:
            raise ItemLogError(f"{error.filename}: {error.strerror}.") from None
    return logs


def report_logs(logs: Sequence[ItemLog], *, own_pictures: bool = False) -> Report:
    """Returns the report of some logs: models are its methods and tasks its benchmarks.

    Differences are paired item by item. Retention is against the first model. Notes name the
    settings that logs do not state.

    Args:
      logs: the logs.
      own_pictures: whether sources are those of our own benchmarks, one name a picture in all
        tasks; else only digests are.

    Raises:
      ItemLogError: if a model has a task twice at a budget and seed, two logs of a task differ in
        metric, split, questions, prompts, targets, pictures or a setting that both state, two of a
        seed in its pretraining, or lower scores are better.
    """
    first_of_model: dict[str, dict[str, ItemLog]] = {}
    first_of_seed: dict[int, ItemLog] = {}
    first_of_training: dict[tuple[str, str], ItemLog] = {}
    files: dict[tuple[str, str, int, int], str] = {}
    by_task: dict[str, list[ItemLog]] = {}
    for log in logs:
        by_task.setdefault(log.task, []).append(log)
    for of_task in by_task.values():
        check_settings(of_task)
    alike = {task: _first_items_of_questions(of_task) for task, of_task in by_task.items()}
    scores = list[Score]()
    unknown, named = dict[str, None](), dict[str, None]()
    for log in logs:
        # Two logs of one model need not be two seeds: one may be a copy or a correction.
        place = (log.model, log.task, log.budget, log.seed)
        if other := files.get(place):
            raise ItemLogError(
                f"{log.file}: {log.model} has {log.task} in {other}, too; leave one out."
            )
        files[place] = log.file
        like = first_of_seed.setdefault(log.seed, log)
        if log.pretraining != like.pretraining:
            raise ItemLogError(
                f"{log.file}: pretraining of seed {log.seed} must be {like.pretraining} as in "
                f"{like.file}, got {log.pretraining}."
            )
        like = first_of_training.setdefault((log.model, log.checkpoint), log)
        if log.checkpoint and log.seed != like.seed:
            raise ItemLogError(
                f"{log.file}: seed must be {like.seed} as in {like.file}, whose checkpoint is the "
                f"same, {log.checkpoint:.16}, got {log.seed}: one training is one seed."
            )
        # With the first of each model, not with the first alone: a log may lack what two others
        # differ in. Those of one model, of its budgets and seeds, say the same things.
        first_logs = first_of_model.setdefault(log.task, {})
        for other_log in first_logs.values():
            _check_comparable(log, other_log)
        first_logs.setdefault(log.model, log)
        if not all(item.source for item in log.items):
            unknown[log.task] = None
        sources = [
            item.source if own_pictures else _logged_item_picture(log.task, item)
            for item in log.items
        ]
        if any("\0" in source for source in sources):
            named[log.task] = None
        # A question without a picture is a source by itself, which no picture's name can be.
        items = items_by_source(
            (source or f"\0{log.task}\0{alike[log.task][item.id]}", item.score)
            for source, item in zip(sources, log.items, strict=True)
        )
        scores.append(
            Score(
                benchmark=log.task,
                method=log.model,
                budget=log.budget,
                seed=log.seed,
                score=mean_item_score(items),
                metric=log.metric,
                artifact="",
                items=items,
            )
        )
    models = tuple(dict.fromkeys(log.model for log in logs))
    budgets_of = {
        model: tuple(sorted({log.budget for log in logs if log.model == model})) for model in models
    }
    first_of_checkpoint: dict[str, str] = {}
    trainings = {
        log.task: first_of_checkpoint.setdefault(log.checkpoint, log.task)
        for log in logs
        if log.checkpoint
    }
    plan = Plan(
        methods=models,
        benchmarks=tuple(first_of_model),
        budgets=tuple(sorted({log.budget for log in logs})),
        seeds=tuple(first_of_seed),
        reference=models[0],
        full_budget=max(budgets_of[models[0]]),
        budgets_of=budgets_of,
        pretrainings=tuple(log.pretraining for log in first_of_seed.values()),
        trainings=trainings,
    )
    notes = ["Read from item logs."]
    if NO_BUDGET in plan.budgets:
        notes = [f"Read from item logs; @{MISSING} stands for their unknown number of tokens."]
    if unknown:
        notes.append(
            f"The logs of {', '.join(unknown)} do not name the items' pictures: "
            f"each item counts as independent, so intervals are too narrow where items share one; "
            f"only those with the same digest, else question and target, count as one."
        )
    if len(named) > 1:
        notes.append(
            f"Pictures of {', '.join(named)} have names and no digests: those of two tasks count "
            f"as different."
        )
    return build_report(plan, scores, {}, notes=[*notes, *settings_notes(by_task)])


def _first_items_of_questions(logs: Sequence[ItemLog]) -> dict[str, str]:
    """Returns id of an item -> id of the first one of its question, by any of a task's logs."""
    first_of, alike = dict[str, str](), dict[str, str]()
    for item in (item for log in logs for item in log.items):
        same = first_of.setdefault(item.alike or f"\0{item.id}", item.id)
        alike[item.id] = min(alike.get(item.id, same), same)
    return alike


def _logged_item_picture(task: str, item: LoggedItem) -> str:
    """Returns an item's picture; a name that is no digest is a picture of the task alone."""
    is_known = not item.source or _DIGEST.fullmatch(item.source)
    return item.source if is_known else f"{task}\0{item.source}"


def _check_comparable(log: ItemLog, first: ItemLog) -> None:
    """Refuses a log whose scores answer another question than another log's of its task."""
    of_first = {item.id: item for item in first.items}
    ids = {item.id for item in log.items}
    if ids != of_first.keys():
        apart = sorted(ids ^ of_first.keys())
        raise ItemLogError(
            f"{log.file}: questions must be those of {first.file}, got {len(ids)} and "
            f"{len(of_first)}, of which {len(apart)} are in one only, such as {apart[0]}."
        )
    fields = ("question", "prompt", "target", "prompt_digest", "target_digest", "source")
    for item in log.items:
        for field in fields:
            ours, theirs = getattr(item, field), getattr(of_first[item.id], field)
            # Sources are compared where one is unknown, too: items are paired source by source.
            if ours != theirs and (field == "source" or (ours and theirs)):
                place = f"{field.replace('_', ' ')} of item {item.id}"
                raise difference_error(log.file, place, ours, theirs, first.file)
