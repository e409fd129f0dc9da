"""Sets models of other systems beside a study of our own, in one report."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from flows.logs.item_log import ItemLog, ItemLogError
from flows.logs.logs_report import report_logs
from flows.logs.own_questions import OwnQuestion, align_log, score_again
from flows.report.average import aggregate_sections
from flows.report.cells import NO_BUDGET, Cell, Comparison, Plan, Report, Score, Section
from flows.report.compare import cell_rows, compare_methods
from model.eval.metrics.scores import Fields


def add_logs(
    report: Report,
    plan: Plan,
    logs: Sequence[ItemLog],
    questions: Mapping[str, Sequence[OwnQuestion]],
    same_metrics: Mapping[str, str],
    read_fields: Callable[[str], Mapping[str, Fields]] = lambda _: {},
) -> Report:
    """Returns the report with the models of some logs as further methods.

    Our own cells, means and differences stay what they are. A model of another system has a cell
    at `NO_BUDGET`, whose items have our sources, so that its interval has our clusters. Its
    difference to each of our methods stands at each of our budgets, paired by item, over our seeds.
    Its answers are scored by our metric; notes say where the log has other scores.

    Args:
      report: the study's report.
      plan: its plan.
      logs: logs of other systems.
      questions: benchmark -> its questions, of those that have items.
      same_metrics: name of a metric in a log -> the name of the same metric of ours.
      read_fields: function from a benchmark to id -> fields of its records, which our metric needs.

    Raises:
      ItemLogError: if a log has no benchmark's questions, another metric, a method's name, or a
        budget of its own.
    """
    sections = {section.benchmark: section for section in report.sections}
    methods = {method for section in report.sections for method in section.methods}
    aligned, notes = list[ItemLog](), list[str]()
    for log in logs:
        if log.model in methods:
            raise ItemLogError(
                f"{log.file}: model must have another name than a method of the study, got "
                f"{log.model!r}."
            )
        if log.budget != NO_BUDGET:
            raise ItemLogError(
                f"{log.file}: is of `parcel results`, with budgets and seeds of its own; write RUN "
                f"with --format eee, too, and give both folders to --predictions without RUN."
            )
        for entry in align_log(log, questions):
            metric = same_metrics.get(entry.metric, entry.metric)
            _check_log_metric(log, metric, sections[entry.task])
            entry = dataclasses.replace(entry, metric=metric)
            scored, note = _rescore_or_keep(entry, read_fields)
            aligned.append(scored)
            notes += [note] if note else []
    theirs = report_logs(aligned, own_pictures=True)
    # A view is a plan of its own, with its own budgets and seeds.
    parts = [_add_sections(report, theirs, sub_plan) for sub_plan in plan.views]
    return dataclasses.replace(
        report,
        sections=tuple(section for part in parts for section in part.sections),
        aggregates=tuple(entry for part in parts for entry in part.aggregates),
        comparisons=tuple(entry for part in parts for entry in part.comparisons),
        notes=(*report.notes, *theirs.notes, *notes, _other_models_note(theirs)),
    )


def _check_log_metric(log: ItemLog, metric: str, section: Section) -> None:
    if metric != section.metric:
        raise ItemLogError(
            f"{log.file}: metric must be {section.metric!r} as in {section.benchmark}, got "
            f"{metric!r}; if both are one rule, say so: "
            f"--same-metric '{log.metric}={section.metric}'."
        )
    if not all(score.plain for cell in section.cells for score in cell.scores):
        raise ItemLogError(
            f"{log.file}: {section.benchmark} has no plain mean of items, but {section.metric} "
            f"over groups of them; only plain means are compared with other systems'."
        )


def _rescore_or_keep(
    log: ItemLog, read_fields: Callable[[str], Mapping[str, Fields]]
) -> tuple[ItemLog, str]:
    """Returns a log with our scores, and a note on what its own differ in; "" if in nothing."""
    place = f"{log.model} on {log.task}"
    try:
        scored = score_again(log, log.metric, read_fields(log.task))
    except (KeyError, OSError, TypeError, ValueError) as error:
        return log, (
            f"Scores of {place} are its log's own, since {log.metric} could not score its answers "
            f"again: {' '.join(str(error).split())[:200]}"
        )
    pairs = [(a.score, b.score) for a, b in zip(log.items, scored.items, strict=True)]
    if not (num := sum(not math.isclose(a, b, abs_tol=1e-6) for a, b in pairs)):
        return scored, ""
    theirs, ours = (sum(100 * pair[side] for pair in pairs) / len(pairs) for side in (0, 1))
    return scored, (
        f"Answers of {place} are scored again by {log.metric}: {ours:.1f}, where its log has "
        f"{theirs:.1f}; {num:,} of {len(pairs):,} items differ."
    )


def _other_models_note(theirs: Report) -> str:
    models = ", ".join(dict.fromkeys(m for section in theirs.sections for m in section.methods))
    return (
        f"Each of {models} is one checkpoint, asked in its own system's words: its differences to "
        f"our methods hold given that checkpoint."
    )


def _add_sections(report: Report, theirs: Report, plan: Plan) -> Report:
    """Returns the sections of one plan, their means and comparisons, with the other models."""
    own = [section for section in report.sections if section.benchmark in plan.benchmarks]
    added = {section.benchmark: section for section in theirs.sections}
    aggregates = [entry for entry in report.aggregates if entry.view == plan.view]
    comparisons = [entry for entry in report.comparisons if entry.view == plan.view]
    models = tuple(dict.fromkeys(m for section in added.values() for m in section.methods))
    if not any(section.benchmark in added for section in own):
        return Report(
            sections=tuple(own), aggregates=tuple(aggregates), comparisons=tuple(comparisons)
        )
    merged = [_merge_section(section, added.get(section.benchmark), models) for section in own]
    between, over = _compare_with_other_models(own, added, models, plan)
    # Differences of ours, then to the others, then between them.
    sections = [
        dataclasses.replace(
            section,
            comparisons=(
                *section.comparisons,
                *(c for c in between[section.benchmark] if c.other in models),
                *(added[section.benchmark].comparisons if section.benchmark in added else ()),
            ),
        )
        for section in merged
    ]
    means = []
    for name, of in dict.fromkeys((entry.name, entry.of) for entry in aggregates):
        names = plan.groups.get(name, plan.benchmarks)
        members = [s for s in sections if s.benchmark in names and s.in_means]
        means += [entry for entry in aggregates if entry.name == name]
        of_models = aggregate_sections(name, members, of=of)
        means += [entry for entry in of_models if entry.method in models]
    between_models = [
        dataclasses.replace(entry, resolution=plan.resolution, backbone=plan.backbone)
        for entry in theirs.comparisons
        if set(entry.benchmarks) <= set(plan.benchmarks)
    ]
    return Report(
        sections=tuple(sections),
        aggregates=tuple(means),
        comparisons=(*comparisons, *over, *between_models),
    )


def _merge_section(own: Section, added: Section | None, models: Sequence[str]) -> Section:
    """Returns a section with a column for models without a budget, and a row for each of them."""
    budgets, cells = (*own.budgets, NO_BUDGET), []
    for method in (*own.methods, *models):
        for budget in budgets:
            if method in own.methods and budget in own.budgets:
                cells.append(own.cell(method, budget))
            elif added and method in models and budget == NO_BUDGET:
                # Retention is what a budget retains of the reference, which is another model.
                cell = added.cell(method, budget)
                cells.append(dataclasses.replace(cell, retention=None, chance=own.chance))
            else:
                cells.append(_no_cell(own, method, budget))
    return dataclasses.replace(
        own, methods=(*own.methods, *models), budgets=budgets, cells=tuple(cells)
    )


def _no_cell(section: Section, method: str, budget: int) -> Cell:
    """Returns the cell of a budget that the method does not serve."""
    return Cell(
        benchmark=section.benchmark,
        method=method,
        budget=budget,
        mean=None,
        std=None,
        n=0,
        expected=0,
        retention=None,
        low=None,
        high=None,
        chance=section.chance,
        metric=section.metric,
    )


def _compare_with_other_models(
    own: Sequence[Section], added: Mapping[str, Section], models: Sequence[str], plan: Plan
) -> tuple[dict[str, tuple[Comparison, ...]], list[Comparison]]:
    """Returns the differences of our methods to the models: by benchmark, and over benchmarks."""
    # A model is the same for each of our seeds and budgets, so its score stands at each of them:
    #
    #             @16           @64             seeds
    #   model     71 71 71      71 71 71        the one score, thrice
    #   parcel    70 72 71      74 73 75
    #   ─▶ parcel − model at 16 and 64, whose seeds are parcel's
    #
    # Our methods come last, so that differences are ours less theirs.
    sections = [
        dataclasses.replace(
            section,
            methods=(*models, *section.methods),
            cells=(
                *(
                    _repeated_model_cell(section, added.get(section.benchmark), model, budget, plan)
                    for model in models
                    for budget in section.budgets
                ),
                *section.cells,
            ),
        )
        for section in own
    ]
    compared, over = compare_methods(sections, plan, cell_rows(sections, plan))
    return (
        {section.benchmark: _to_models(section.comparisons, models) for section in compared},
        list(_to_models(over, models)),
    )


def _to_models(entries: Sequence[Comparison], models: Sequence[str]) -> tuple[Comparison, ...]:
    return tuple(e for e in entries if e.other in models and e.method not in models)


def _repeated_model_cell(
    section: Section, added: Section | None, model: str, budget: int, plan: Plan
) -> Cell:
    cell = _no_cell(section, model, budget)
    scores: Sequence[Score] = added.cell(model, NO_BUDGET).scores if added else ()
    if not scores:
        return cell
    repeated = tuple(
        dataclasses.replace(scores[0], budget=budget, seed=seed) for seed in plan.seeds
    )
    num = len(plan.seeds)
    return dataclasses.replace(cell, mean=scores[0].score, n=num, expected=num, scores=repeated)
