"""The intervals of retentions, and of means over benchmarks.

A retention is a ratio of two means over the same seeds and items, R = 100 · A / B. To first order
its error is the mean of the numbers below, one per seed and item, so its interval is that of any
mean:

    100 · (a[seed, item] - A / B · b[seed, item]) / B        its mean is 0; a seed or picture that
                                                             is easy for both cancels

Source: Woodruff, JASA 66, 1971; a ratio is one of his cases. The next order matters where B is
less than four of its standard errors, and a reference is that only near chance, where there is no
retention.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from flows.report.cells import Aggregate, Cell, Plan, Score, Section
from flows.report.compare import CellPlace, CellRows, by_method, shared_rows
from flows.report.interval import ScoreInterval, estimate_interval, estimate_intervals
from flows.report.paired_scores import PairedScores


def paired_retention(seeds: Mapping[int, Score], reference: Mapping[int, Score]) -> float | None:
    """Returns 100 · A / B over the seeds that both have; None without any, or if B is 0."""
    # Paired: a seed that only one side has would compare different draws.
    # Means over the same seeds on both sides, so their number cancels: sums will do.
    shared = sorted(seeds.keys() & reference.keys())
    full = math.fsum(reference[s].score for s in shared)
    return 100 * math.fsum(seeds[s].score for s in shared) / full if full > 0 else None


def add_intervals(
    sections: Sequence[Section], aggregates: Sequence[Aggregate], rows: CellRows, plan: Plan
) -> tuple[tuple[Section, ...], list[Aggregate]]:
    """Returns the sections with the intervals of their retentions, and the means with theirs.

    A mean over benchmarks has one of its scores and one of its retentions.
    """
    retentions = dict(_retention_rows(sections, rows))
    intervals: dict[CellPlace, ScoreInterval] = {}
    pretraining_of, noisy = plan.pretraining_of, {*_noisy_cells(sections)}
    for keys in by_method(retentions):
        of_keys, seeds = zip(*(retentions[key] for key in keys), strict=True)
        numbers = [[pretraining_of[seed] for seed in of] for of in seeds]
        outliers = [key in noisy for key in keys]
        intervals.update(zip(keys, estimate_intervals(of_keys, numbers, outliers), strict=True))

    def with_interval(cell: Cell) -> Cell:
        interval = intervals.get((cell.benchmark, cell.method, cell.budget))
        return (
            dataclasses.replace(cell, **_retention_interval_ends(interval, cell.retention))
            if interval
            else cell
        )

    found = (
        dataclasses.replace(section, cells=tuple(map(with_interval, section.cells)))
        for section in sections
    )
    # A mean has all seeds of each of its benchmarks; the reference may lack some.
    full = {key: row for key, (row, seeds) in retentions.items() if len(seeds) == len(plan.seeds)}
    return tuple(found), [_with_intervals(entry, rows, full, plan) for entry in aggregates]


def _with_intervals(
    entry: Aggregate,
    scores: CellRows,
    retentions: CellRows,
    plan: Plan,
) -> Aggregate:
    """Returns a mean with its intervals; `retentions` are those over all seeds."""
    keys = [(name, entry.method, entry.budget) for name in entry.benchmarks]
    numbers = [*plan.pretraining_of.values()]
    ends: dict[str, float | None] = {}
    if entry.mean is not None:
        interval = estimate_interval([scores[key] for key in keys], numbers)
        ends |= {"low": interval.low, "high": interval.high}
    if entry.retention is not None and retentions.keys() >= set(keys):
        interval = estimate_interval([retentions[key] for key in keys], numbers)
        ends |= _retention_interval_ends(interval, entry.retention)
    return dataclasses.replace(entry, **ends)


def _noisy_cells(sections: Sequence[Section]) -> Iterator[CellPlace]:
    """Yields the cells whose retention has seeds unlike those on other benchmarks."""
    for section in sections:
        if not section.has_reference:
            continue
        full = section.cell(section.reference, section.full_budget)
        for cell in section.cells:
            # Budgets of one method share the noise of its trainings, which cancels.
            of_two = cell.method != full.method
            if of_two and (cell.has_outlier_seeds or full.has_outlier_seeds):
                yield cell.benchmark, cell.method, cell.budget


def _retention_rows(
    sections: Sequence[Section], rows: CellRows
) -> Iterator[tuple[CellPlace, tuple[PairedScores, list[int]]]]:
    """Yields the row of each cell with a retention, and its seeds.

    The reference's own is 100, and has none. Nor has one over a single seed of several: an interval
    beside it, over items, would hold for that training alone and would not say so.
    """
    for section in sections:
        if not section.has_reference:
            continue
        full = section.cell(section.reference, section.full_budget)
        for cell in section.cells:
            if cell is full or cell.retention is None:
                continue
            # Paired, like the retention itself, which is None without a common seed.
            row, less, seeds = shared_rows(cell, full, rows)
            if len(seeds) == 1 < max(len(cell.scores), len(full.scores)):
                continue
            # A retention of 0 leaves the scores alone: `times` takes no factor of 0.
            errors = row.minus(less.times(cell.retention / 100)) if cell.retention else row
            key = cell.benchmark, cell.method, cell.budget
            yield key, (errors.times(100 / float(less.values.mean())), seeds)


def _retention_interval_ends(
    interval: ScoreInterval, retention: float | None
) -> dict[str, float | None]:
    """Returns the ends of a retention's interval; a retention is not below 0."""
    if interval.low is None or interval.high is None or retention is None:
        return {}
    return {
        "retention_low": max(retention + interval.low, 0.0),
        "retention_high": retention + interval.high,
    }
