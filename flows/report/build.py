"""Builds a report: groups scores by cell, and averages over seeds and benchmarks."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flows.report.cells import Aggregate, Cell, Plan, Report, Score, Section
from flows.report.items import Items, standard_error
from flows.report.spread import summarize


def build(
    plan: Plan,
    scores: Iterable[Score],
    chance: Mapping[str, float],
    guesses: Mapping[str, Items] | None = None,
) -> Report:
    """Returns the report of a study; the order of `scores` does not matter.

    Args:
      plan: what there should be.
      scores: what there is so far; cells without any are shown as missing.
      chance: benchmark -> score of the best guess that never sees pixels, 0–100.
      guesses: benchmark -> the items of that guess; one that is left out counts as exact.

    Raises:
      ValueError: if a score is outside the plan, given twice, or in another metric than the
        rest of its benchmark.
    """
    found = _by_cell(scores, plan)
    known = guesses or {}
    sections = tuple(
        _section(b, found, chance.get(b), known.get(b, {}), plan) for b in plan.benchmarks
    )
    groups = {"all": plan.benchmarks} if len(plan.benchmarks) > 1 else {}
    aggregates = [
        entry
        for name, members in {**plan.groups, **groups}.items()
        for entry in aggregate(name, [s for s in sections if s.benchmark in members], len(members))
    ]
    return Report(sections=sections, aggregates=tuple(aggregates))


def aggregate(
    name: str, sections: Sequence[Section], expected: int, resolution: int | None = None
) -> list[Aggregate]:
    """Returns one aggregate per method and budget that every section plans for.

    Args:
      name: what the table calls them.
      sections: the benchmarks there are, all with the same methods and budgets.
      expected: how many benchmarks there should be.
      resolution: their image side, if the report holds several [pixels].
    """
    entries = []
    for method in sections[0].methods:
        for budget in sections[0].budgets:
            cells = [s.cell(method, budget) for s in sections]
            if all(c.expected for c in cells):
                entries.append(_average(name, cells, expected, resolution))
    return entries


def _average(name: str, cells: list[Cell], expected: int, resolution: int | None) -> Aggregate:
    there = [c for c in cells if c.complete]
    means = [c.mean for c in there if c.mean is not None]
    kept = [c.retention for c in there if c.retention is not None]
    partial = statistics.mean(kept) if kept else None
    return Aggregate(
        name=name,
        method=cells[0].method,
        budget=cells[0].budget,
        rows=len(kept),
        expected=expected,
        mean=statistics.mean(means) if len(means) == expected else None,
        retention=partial if len(kept) == expected else None,
        partial=partial,
        resolution=resolution,
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
            raise ValueError(f"scores must be of the plan, got {where}; it plans {plan}.")
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
    benchmark: str, found: _Found, chance: float | None, guess: Items, plan: Plan
) -> Section:
    metric = next(
        (s.metric for key, seeds in found.items() if key[0] == benchmark for s in seeds.values()),
        "",
    )
    shared: dict[str, Any] = {"benchmark": benchmark, "chance": chance, "metric": metric}

    def cell(method: str, budget: int) -> Cell:
        seeds = found.get((benchmark, method, budget), {})
        scores = tuple(seeds[s] for s in plan.seeds if s in seeds)
        return Cell(
            **shared,
            **summarize([s.score for s in scores]),
            method=method,
            budget=budget,
            expected=len(plan.seeds) if plan.runs(method, budget) else 0,
            retention=_retention(seeds, reference),
            error=standard_error([s.items for s in scores], guess),
            scores=scores,
        )

    # A score that may be chance's own is no measure of what others keep of it.
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
    )


def _retention(seeds: Mapping[int, Score], reference: Mapping[int, Score]) -> float | None:
    shared = sorted(seeds.keys() & reference.keys())
    full = math.fsum(reference[s].score for s in shared)
    return 100 * math.fsum(seeds[s].score for s in shared) / full if full > 0 else None
