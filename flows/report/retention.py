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
from flows.report.compare import paired_scores
from flows.report.interval import ScoreInterval, estimate_interval, estimate_intervals
from flows.report.paired_scores import PairedScores

_CellPlace = tuple[str, str, int]
"""Benchmark, method and budget."""


def paired_retention(seeds: Mapping[int, Score], reference: Mapping[int, Score]) -> float | None:
    """Returns 100 · A / B over the seeds that both have; None without any, or if B is 0."""
    # Paired: a seed that only one side has would compare different draws.
    # Means over the same seeds on both sides, so their number cancels: sums will do.
    shared = sorted(seeds.keys() & reference.keys())
    full = math.fsum(reference[s].score for s in shared)
    return 100 * math.fsum(seeds[s].score for s in shared) / full if full > 0 else None


def add_intervals(
    sections: Sequence[Section], aggregates: Sequence[Aggregate], plan: Plan
) -> tuple[tuple[Section, ...], list[Aggregate]]:
    """Returns the sections with the intervals of their retentions, and the means with theirs.

    A mean over benchmarks has one of its scores and one of its retentions.
    """
    scores = {
        (section.benchmark, cell.method, cell.budget): paired_scores(
            section.benchmark, cell.scores, plan
        )
        for section in sections
        for cell in section.cells
        if cell.scores
    }
    rows = dict(_retention_rows(sections, scores))
    intervals: dict[_CellPlace, ScoreInterval] = {}
    # Seeds of a method at a budget tell of each other's spread, whatever the benchmark.
    for method, budget in dict.fromkeys(key[1:] for key in rows):
        keys = [key for key in rows if key[1:] == (method, budget)]
        of_keys, seeds = zip(*(rows[key] for key in keys), strict=True)
        numbers = [[plan.pretraining_of[seed] for seed in of] for of in seeds]
        intervals.update(zip(keys, estimate_intervals(of_keys, numbers), strict=True))

    def with_interval(cell: Cell) -> Cell:
        interval = intervals.get((cell.benchmark, cell.method, cell.budget))
        return dataclasses.replace(cell, **_ends(interval, cell.retention)) if interval else cell

    found = (
        dataclasses.replace(section, cells=tuple(map(with_interval, section.cells)))
        for section in sections
    )
    # A mean has all seeds of each of its benchmarks; the reference may lack some.
    full = {key: row for key, (row, seeds) in rows.items() if len(seeds) == len(plan.seeds)}
    return tuple(found), [_with_intervals(entry, scores, full, plan) for entry in aggregates]


def _with_intervals(
    entry: Aggregate,
    scores: Mapping[_CellPlace, PairedScores],
    retentions: Mapping[_CellPlace, PairedScores],
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
        ends |= _ends(interval, entry.retention)
    return dataclasses.replace(entry, **ends)


def _retention_rows(
    sections: Sequence[Section], scores: Mapping[_CellPlace, PairedScores]
) -> Iterator[tuple[_CellPlace, tuple[PairedScores, list[int]]]]:
    """Yields the row of each cell with a retention, and its seeds.

    The reference's own is 100, and has none. Nor has one over a single seed of several: an interval
    beside it, over items, would hold for that training alone and would not say so.
    """
    for section in sections:
        if not section.has_reference:
            continue
        full = section.cell(section.reference, section.full_budget)
        seeds = [score.seed for score in full.scores]
        for cell in section.cells:
            own = [score.seed for score in cell.scores]
            # Paired, like the retention itself: over the seeds that both have.
            shared = [seed for seed in own if seed in seeds]
            if cell is full or cell.retention is None or not shared:
                continue
            if len(shared) == 1 < max(len(own), len(seeds)):
                continue
            key = section.benchmark, cell.method, cell.budget
            row = scores[key].of_seeds([own.index(seed) for seed in shared])
            less = scores[section.benchmark, full.method, full.budget].of_seeds(
                [seeds.index(seed) for seed in shared]
            )
            # A retention of 0 leaves the scores alone: `times` takes no factor of 0.
            errors = row.minus(less.times(cell.retention / 100)) if cell.retention else row
            yield key, (errors.times(100 / float(less.values.mean())), shared)


def _ends(interval: ScoreInterval, retention: float | None) -> dict[str, float | None]:
    """Returns the ends of a retention's interval; a retention is not below 0."""
    if interval.low is None or interval.high is None or retention is None:
        return {}
    return {
        "retention_low": max(retention + interval.low, 0.0),
        "retention_high": retention + interval.high,
    }
