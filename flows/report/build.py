"""Builds a report: groups scores by cell, and averages over seeds and benchmarks."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from flows.report.average import aggregate
from flows.report.cells import Cell, Plan, Report, Score, Section
from flows.report.compare import compare
from flows.report.interval import Paired, estimate
from flows.report.items import Items, mean_of, num_items, standard_error, without
from flows.report.spread import summarize


def build(
    plan: Plan,
    scores: Iterable[Score],
    chance: Mapping[str, float],
    guesses: Mapping[str, Items] | None = None,
    notes: Iterable[str] = (),
    seen: Set[str] = frozenset(),
) -> Report:
    """Returns the report of a study; the order of `scores` does not matter.

    Args:
      plan: the cells that the study plans to fill.
      scores: scores so far; a planned cell without any is shown as missing.
      chance: benchmark -> score of the best guess that never sees pixels, 0–100.
      guesses: benchmark -> items of that guess; without them its score is taken as exact.
      notes: remarks shown below the tables, one line each.
      seen: sources whose pictures a training corpus holds.

    Raises:
      ValueError: if a score is outside the plan, given twice, or in another metric than the
        rest of its benchmark.
    """
    plans = (plan, *plan.also)
    rows = {row: number for number, one in enumerate(plans) for row in one.benchmarks}
    own: list[list[Score]] = [[] for _ in plans]
    for score in scores:  # A score of no plan goes to the first one, where `_by_cell` refuses it.
        own[rows.get(score.benchmark, 0)].append(score)
    reports = [
        _of_one(one, its, chance, guesses or {}, seen) for one, its in zip(plans, own, strict=True)
    ]
    return Report(
        sections=tuple(section for one in reports for section in one.sections),
        aggregates=tuple(entry for one in reports for entry in one.aggregates),
        comparisons=tuple(entry for one in reports for entry in one.comparisons),
        num_pretrainings=max(one.num_pretrainings for one in reports),
        notes=tuple(notes),
    )


def _of_one(
    plan: Plan,
    scores: Iterable[Score],
    chance: Mapping[str, float],
    known: Mapping[str, Items],
    seen: Set[str],
) -> Report:
    """Returns the report of one resolution."""
    found = _by_cell(scores, plan)
    sections = tuple(
        _section(b, found, chance.get(b), known.get(b, {}), plan, seen) for b in plan.benchmarks
    )
    groups = {"all": plan.benchmarks} if len(plan.benchmarks) > 1 else {}
    aggregates = [
        entry
        for name, members in {**plan.groups, **groups}.items()
        for entry in aggregate(
            name, [s for s in sections if s.benchmark in members], len(members), plan.resolution
        )
    ]
    sections, comparisons = compare(sections, plan)
    return Report(
        sections=sections,
        aggregates=tuple(aggregates),
        comparisons=comparisons,
        num_pretrainings=len(set(plan.pretraining_of.values())),
    )


_Found = dict[tuple[str, str, int], dict[int, Score]]


def _by_cell(scores: Iterable[Score], plan: Plan) -> _Found:
    found: _Found = {}
    metrics: dict[str, str] = {}
    for score in scores:
        where = f"{score.benchmark}/{score.method}/{score.budget} seed {score.seed}"
        if not (
            score.benchmark in plan.benchmarks
            and score.method in plan.methods
            and score.seed in plan.seeds
            and plan.runs(score.method, score.budget)
        ):
            raise ValueError(f"scores must be in the plan, got {where}; the plan is {plan}.")
        metric = metrics.setdefault(score.benchmark, score.metric)
        if score.metric != metric:
            raise ValueError(
                f"metric must be one per benchmark, got {score.metric} and {metric} "
                f"for {score.benchmark}."
            )
        cell = found.setdefault((score.benchmark, score.method, score.budget), {})
        if score.seed in cell:
            raise ValueError(f"scores must be given once, got {where} twice.")
        cell[score.seed] = score
    return found


def _section(
    benchmark: str,
    found: _Found,
    chance: float | None,
    guess: Items,
    plan: Plan,
    seen: Set[str],
) -> Section:
    metric = next(
        (s.metric for key, seeds in found.items() if key[0] == benchmark for s in seeds.values()),
        "",
    )
    shared: dict[str, Any] = {"benchmark": benchmark, "chance": chance, "metric": metric}

    def cell(method: str, budget: int) -> Cell:
        seeds = found.get((benchmark, method, budget), {})
        scores = tuple(seeds[s] for s in plan.seeds if s in seeds)
        pretrainings = [plan.pretraining_of[s.seed] for s in scores]
        row = Paired.of([s.score for s in scores], [s.items for s in scores])
        sure = estimate([row], pretrainings) if scores else None
        return Cell(
            **shared,
            **summarize([s.score for s in scores]),
            low=sure.low if sure else None,
            high=sure.high if sure else None,
            method=method,
            budget=budget,
            expected=len(plan.seeds) if plan.runs(method, budget) else 0,
            retention=_retention(seeds, reference),
            error=standard_error([s.items for s in scores], guess),
            scores=scores,
            unseen=_unseen(scores, seen),
            cost=costs.get((method, budget)),
        )

    costs = {(c.method, c.budget): c for c in plan.costs if benchmark in c.benchmarks}
    of_benchmark = (seeds.values() for key, seeds in found.items() if key[0] == benchmark)
    items = next((s.items for scores in of_benchmark for s in scores if s.items and s.plain), {})
    # If the reference may be at chance, a retention against it would mean nothing.
    reference: Mapping[int, Score] = {}
    if cell(plan.reference, plan.full).above_chance is not False:
        reference = found.get((benchmark, plan.reference, plan.full), {})
    return Section(
        **shared,
        methods=plan.methods,
        budgets=plan.budgets,
        reference=plan.reference,
        full_budget=plan.full,
        cells=tuple(cell(method, budget) for method in plan.methods for budget in plan.budgets),
        group=next((g for g, members in plan.groups.items() if benchmark in members), ""),
        seen=num_items(items) - num_items(without(items, seen)),
        items=num_items(items),
        resolution=plan.resolution,
    )


def _unseen(scores: Sequence[Score], seen: Set[str]) -> float | None:
    """Returns the mean over seeds without the items of the sources `seen`.

    None if that leaves all items or none, or a score is not the plain mean of its items.
    """
    runs = [s.items for s in scores]
    left = [without(items, seen) for items in runs]
    if not all(left) or left == runs or not all(s.plain for s in scores):
        return None
    return statistics.mean(mean_of(items) for items in left)


def _retention(seeds: Mapping[int, Score], reference: Mapping[int, Score]) -> float | None:
    shared = sorted(seeds.keys() & reference.keys())
    full = math.fsum(reference[s].score for s in shared)
    return 100 * math.fsum(seeds[s].score for s in shared) / full if full > 0 else None
