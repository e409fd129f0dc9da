"""Builds a report of other systems' items: the same intervals, pairing and clusters as our own."""

from collections.abc import Sequence
from pathlib import Path

from flows.report.build import build_report
from flows.report.cells import Plan, Report, Score
from flows.report.foreign import every_eval_ever, lmms_eval
from flows.report.foreign.item_log import UNKNOWN_BUDGET, ItemLog, ItemLogError
from flows.report.items import items_by_source, mean_item_score

FORMATS = {"lmms-eval": lmms_eval, "Every Eval Ever": every_eval_ever}
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
      ItemLogError: if a model has a task twice at a budget and seed, two logs of a task differ in
        metric, split, questions or prompts, or two of a seed in its pretraining.
    """
    first_of_task: dict[str, ItemLog] = {}
    first_of_seed: dict[int, ItemLog] = {}
    files: dict[tuple[str, str, int, int], str] = {}
    scores, unknown = [], []
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
        _check_comparable(log, first_of_task.setdefault(log.task, log))
        if not all(item.source for item in log.items):
            unknown.append(log.task)
        # An item without a picture is a source by itself, which no picture's name can be.
        items = items_by_source((item.source or f"\0{item.id}", item.score) for item in log.items)
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
        benchmarks=tuple(first_of_task),
        budgets=tuple(sorted({log.budget for log in logs})),
        seeds=tuple(first_of_seed),
        reference=models[0],
        full_budget=max(budgets_of[models[0]]),
        budgets_of=budgets_of,
        pretrainings=tuple(log.pretraining for log in first_of_seed.values()),
        trainings=trainings,
    )
    notes = ["Read from item logs."]
    if UNKNOWN_BUDGET in plan.budgets:
        notes = [f"Read from item logs; {UNKNOWN_BUDGET} stands for an unknown number of tokens."]
    if unknown:
        notes.append(
            f"The logs of {', '.join(dict.fromkeys(unknown))} do not name the items' pictures: "
            f"each item counts as independent, so intervals are too narrow where items share one."
        )
    return build_report(plan, scores, {}, notes=notes)


def _check_comparable(log: ItemLog, first: ItemLog) -> None:
    """Refuses a log whose scores answer another question than the first log's of its task."""
    for field in ("metric", "split"):
        ours, theirs = getattr(log, field), getattr(first, field)
        if ours != theirs:
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
        for field in ("question", "prompt", "source"):
            ours, theirs = getattr(item, field), getattr(of_first[item.id], field)
            if ours != theirs:
                raise ItemLogError(
                    f"{log.file}: {field} of item {item.id} must be {theirs!r:.80} as in "
                    f"{first.file}, got {ours!r:.80}."
                )
