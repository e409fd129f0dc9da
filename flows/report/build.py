"""Builds a report: groups scores by cell, and averages over seeds and benchmarks."""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from flows.report.average import group_means
from flows.report.cells import Cell, Plan, Report, Score, Section
from flows.report.compare import CellRows, by_method, compare_methods, row_of
from flows.report.interval import ScoreInterval, estimate_intervals, find_outlier_rows
from flows.report.items import (
    Items,
    mean_item_score,
    num_items,
    without_sources,
)
from flows.report.margin import margin_errors
from flows.report.retention import add_intervals, paired_retention
from flows.report.spread import summarize_scores


def build_report(
    plan: Plan,
    scores: Iterable[Score],
    chance: Mapping[str, float],
    guesses: Mapping[str, Items] | None = None,
    notes: Iterable[str] = (),
    contaminated_sources: Set[str] = frozenset(),
    question_blind: Mapping[str, float | None] | None = None,
) -> Report:
    """Returns the report of a study; the order of `scores` does not matter.

    Args:
      plan: the cells that the study plans to fill.
      scores: scores so far; a planned cell without any is shown as missing.
      chance: benchmark -> score of the best guess that never sees pixels, 0–100.
      guesses: benchmark -> items of that guess; without them its score is taken as exact.
      notes: remarks shown below the tables, one line each.
      contaminated_sources: sources whose pictures a training corpus holds.
      question_blind: benchmark -> score of the best answers that never see the question, 0–100;
        None where no picture has two questions.

    Raises:
      ValueError: if a score is outside the plan, given twice, or in another metric than the
        rest of its benchmark.
    """
    # The data of a report, from what was planned to what is shown:
    #
    #   plan        what should be there: methods × benchmarks × budgets × seeds
    #   scores      what is there: one per benchmark, method, budget and seed
    #   ─▶ cells    one per benchmark, method and budget: the mean over its seeds
    #   ─▶ sections one per benchmark: its cells, and its methods compared
    #   ─▶ report   sections, means over benchmarks, comparisons over benchmarks
    #   ─▶ tables   Markdown, LaTeX, CSV, JSON, pages: all from `result_columns`
    #
    # A view, of a backbone at a resolution, is a plan of its own; together they are one report. So
    # no mean and no retention is over several.
    rows = {
        row: number for number, sub_plan in enumerate(plan.views) for row in sub_plan.benchmarks
    }
    scores_by_plan: list[list[Score]] = [[] for _ in plan.views]
    for score in scores:
        # A score of no plan goes to the first one, where `_scores_by_cell` refuses it.
        scores_by_plan[rows.get(score.benchmark, 0)].append(score)
    shared = (chance, guesses or {}, contaminated_sources, question_blind or {})
    reports = [
        _plan_report(sub_plan, plan_scores, *shared)
        for sub_plan, plan_scores in zip(plan.views, scores_by_plan, strict=True)
    ]
    return Report(
        sections=tuple(section for part in reports for section in part.sections),
        aggregates=tuple(entry for part in reports for entry in part.aggregates),
        comparisons=tuple(entry for part in reports for entry in part.comparisons),
        num_pretrainings=max(part.num_pretrainings for part in reports),
        notes=tuple(notes),
    )


def _plan_report(
    plan: Plan,
    scores: Iterable[Score],
    chance: Mapping[str, float],
    guesses: Mapping[str, Items],
    contaminated_sources: Set[str],
    question_blind: Mapping[str, float | None],
) -> Report:
    """Returns the report of one view."""
    by_cell = _scores_by_cell(scores, plan)
    # What all intervals and differences are made from, built once.
    rows = {
        key: row_of(key[0], _scores_in_seed_order(seeds, plan), plan)
        for key, seeds in by_cell.items()
    }
    intervals = _cell_intervals(by_cell, rows, chance, guesses, plan)
    sections = tuple(
        dataclasses.replace(
            _build_section(b, by_cell, intervals, chance.get(b), plan, contaminated_sources),
            without_question=question_blind.get(b),
        )
        for b in plan.benchmarks
    )
    aggregates = group_means(sections, plan.groups, plan.group_sizes)
    sections, aggregates = add_intervals(sections, aggregates, rows, plan)
    # After the means: a comparison needs all cells of its benchmark, and changes none of them.
    sections, comparisons = compare_methods(sections, plan, rows)
    return Report(
        sections=sections,
        aggregates=tuple(aggregates),
        comparisons=comparisons,
        num_pretrainings=len(set(plan.pretraining_of.values())),
    )


_ScoresByCell = dict[tuple[str, str, int], dict[int, Score]]
_IntervalsByCell = dict[tuple[str, str, int], tuple[ScoreInterval, float | None, bool]]


def _scores_by_cell(scores: Iterable[Score], plan: Plan) -> _ScoresByCell:
    #   (chartqa:test_human, parcel, 64) -> {48213: a score, 1977: a score}
    #
    # A score that does not belong is refused, and not left out: it means that the plan and the
    # inputs of the table are of two studies.
    by_cell: _ScoresByCell = {}
    metrics: dict[str, str] = {}
    for score in scores:
        name = f"{score.benchmark}/{score.method}/{score.budget} seed {score.seed}"
        if not (
            score.benchmark in plan.benchmarks
            and score.method in plan.methods
            and score.seed in plan.seeds
            and plan.runs(score.method, score.budget)
        ):
            raise ValueError(f"scores must be in the plan, got {name}; the plan is {plan}.")
        metric = metrics.setdefault(score.benchmark, score.metric)
        if score.metric != metric:
            raise ValueError(
                f"metric must be one per benchmark, got {score.metric} and {metric} "
                f"for {score.benchmark}."
            )
        cell = by_cell.setdefault((score.benchmark, score.method, score.budget), {})
        if score.seed in cell:
            raise ValueError(f"scores must be given once, got {name} twice.")
        cell[score.seed] = score
    return by_cell


def _cell_intervals(
    by_cell: _ScoresByCell,
    rows: CellRows,
    chance: Mapping[str, float],
    guesses: Mapping[str, Items],
    plan: Plan,
) -> _IntervalsByCell:
    """Returns each cell's interval, its margin's standard error, and whether seeds are outliers."""
    found: _IntervalsByCell = {}
    pretraining_of = plan.pretraining_of
    for keys in by_method(by_cell):
        of_keys = [rows[key] for key in keys]
        numbers = [
            [pretraining_of[score.seed] for score in _scores_in_seed_order(by_cell[key], plan)]
            for key in keys
        ]
        blind = [(chance.get(key[0]), guesses.get(key[0], {})) for key in keys]
        outliers = find_outlier_rows(of_keys, numbers)
        intervals = estimate_intervals(of_keys, numbers, outliers)
        errors = margin_errors(of_keys, blind, numbers)
        found.update(zip(keys, zip(intervals, errors, outliers, strict=True), strict=True))
    return found


def _scores_in_seed_order(seeds: Mapping[int, Score], plan: Plan) -> tuple[Score, ...]:
    # In the order of the plan's seeds: scores of two methods are paired by that order.
    return tuple(seeds[s] for s in plan.seeds if s in seeds)


def _build_section(
    benchmark: str,
    by_cell: _ScoresByCell,
    intervals: _IntervalsByCell,
    chance: float | None,
    plan: Plan,
    contaminated_sources: Set[str],
) -> Section:
    metric = next(
        (s.metric for key, seeds in by_cell.items() if key[0] == benchmark for s in seeds.values()),
        "",
    )
    shared: dict[str, Any] = {"benchmark": benchmark, "chance": chance, "metric": metric}

    def cell(method: str, budget: int) -> Cell:
        seeds = by_cell.get((benchmark, method, budget), {})
        scores = _scores_in_seed_order(seeds, plan)
        interval, error, is_outlier = intervals.get(
            (benchmark, method, budget), (None, None, False)
        )
        return Cell(
            **shared,
            **summarize_scores([s.score for s in scores]),
            low=interval.low if interval else None,
            high=interval.high if interval else None,
            method=method,
            budget=budget,
            expected=len(plan.seeds) if plan.runs(method, budget) else 0,
            retention=paired_retention(seeds, reference),
            error=error,
            scores=scores,
            unseen=_unseen_mean(scores, contaminated_sources),
            cost=costs.get((method, budget)),
            pretrainings=interval.pretrainings if interval else 0,
            items=interval.items if interval else 0,
            pictures=interval.pictures if interval else 0,
            has_outlier_seeds=is_outlier,
        )

    # `cell` above reads `costs` and `reference`, which are set from here on. It is first called
    # for the reference itself, with no reference yet: that call is for `above_chance` alone.
    costs = {(c.method, c.budget): c for c in plan.costs if benchmark in c.benchmarks}
    of_benchmark = (seeds.values() for key, seeds in by_cell.items() if key[0] == benchmark)
    items = next((s.items for scores in of_benchmark for s in scores if s.items and s.plain), {})
    # If the reference may be at chance, a retention against it would mean nothing.
    reference: Mapping[int, Score] = {}
    if cell(plan.reference, plan.full).above_chance is not False:
        reference = by_cell.get((benchmark, plan.reference, plan.full), {})
    return Section(
        **shared,
        methods=plan.methods,
        budgets=plan.budgets,
        reference=plan.reference,
        full_budget=plan.full,
        cells=tuple(cell(method, budget) for method in plan.methods for budget in plan.budgets),
        group=plan.blocks.get(benchmark, ""),
        in_means=benchmark not in plan.left_out,
        seen=num_items(items) - num_items(without_sources(items, contaminated_sources)),
        items=num_items(items),
        resolution=plan.resolution,
        backbone=plan.backbone,
    )


def _unseen_mean(scores: Sequence[Score], contaminated_sources: Set[str]) -> float | None:
    """Returns the mean over seeds without the items of contaminated sources.

    None if that leaves all items or none, or a score is not the plain mean of its items.
    """
    if not contaminated_sources:
        return None
    runs = [s.items for s in scores]
    remaining = [without_sources(items, contaminated_sources) for items in runs]
    if not all(remaining) or remaining == runs or not all(s.plain for s in scores):
        return None
    return statistics.mean(mean_item_score(items) for items in remaining)
