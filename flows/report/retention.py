"""The intervals of retentions, and of means over benchmarks.

A retention is a ratio of two means over the same seeds and items, R = 100 · A / B. To first order
it errs as the mean of one row of numbers does, which is like every other from there on:

    100 · (a[seed, item] - A / B · b[seed, item]) / B        its mean is 0; a seed or picture that
                                                             is easy for both cancels

Source: Woodruff, JASA 66, 1971; a ratio is one of his cases. The next order matters where B is
less than four of its standard errors, and a reference is that only near chance, where there is no
retention.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from flows.report.cells import Aggregate, Cell, Plan, Score, Section
from flows.report.compare import paired_scores
from flows.report.interval import ScoreInterval, estimate_interval, estimate_intervals
from flows.report.paired_scores import PairedScores

_Rows = Mapping[tuple[str, str, int], tuple[PairedScores, list[int]]]
"""(benchmark, method, budget) -> a row, and the pretraining of each of its seeds."""


def add_retention_intervals(sections: Sequence[Section], plan: Plan) -> tuple[Section, ...]:
    """Returns the sections whose cells have the intervals of their retentions."""
    rows = _retention_rows(sections, plan)
    intervals: dict[tuple[str, str, int], ScoreInterval] = {}
    # Seeds of a method at a budget tell of each other's spread, whatever the benchmark.
    for method, budget in dict.fromkeys(key[1:] for key in rows):
        keys = [key for key in rows if key[1:] == (method, budget)]
        of_keys, numbers = zip(*(rows[key] for key in keys), strict=True)
        intervals.update(zip(keys, estimate_intervals(of_keys, numbers), strict=True))
    return tuple(
        dataclasses.replace(
            section,
            cells=tuple(
                dataclasses.replace(
                    cell, **_ends(intervals.get(_key(section, cell)), cell.retention)
                )
                for cell in section.cells
            ),
        )
        for section in sections
    )


def add_mean_intervals(
    aggregates: Sequence[Aggregate], sections: Sequence[Section], plan: Plan
) -> list[Aggregate]:
    """Returns the means over benchmarks with their intervals, of scores and of retentions."""
    retentions = {key: row for key, (row, _) in _retention_rows(sections, plan).items()}
    scores = {
        _key(section, cell): paired_scores(section.benchmark, cell.scores, plan)
        for section in sections
        for cell in section.cells
        if cell.complete and cell.scores
    }
    numbers = [*plan.pretraining_of.values()]
    found = []
    for entry in aggregates:
        keys = [(name, entry.method, entry.budget) for name in entry.benchmarks]
        ends: dict[str, float | None] = {}
        if entry.mean is not None and scores.keys() >= set(keys):
            interval = estimate_interval([scores[key] for key in keys], numbers)
            ends |= {"low": interval.low, "high": interval.high}
        if entry.retention is not None and retentions.keys() >= set(keys):
            interval = estimate_interval([retentions[key] for key in keys], numbers)
            ends |= _ends(interval, entry.retention)
        found.append(dataclasses.replace(entry, **ends))
    return found


def _retention_rows(sections: Sequence[Section], plan: Plan) -> _Rows:
    """Returns the rows of all cells with a retention but the reference's own, which is 100."""
    rows = {}
    for section in sections:
        if not section.has_reference:
            continue
        full = section.cell(section.reference, section.full_budget)
        reference = {score.seed: score for score in full.scores}
        for cell in section.cells:
            if cell is full or cell.retention is None:
                continue
            # Paired, like the retention itself: over the seeds that both have.
            shared = [score for score in cell.scores if score.seed in reference]
            if shared:
                less = [reference[score.seed] for score in shared]
                row = _row(section.benchmark, shared, less, cell.retention, plan)
                rows[_key(section, cell)] = row, [plan.pretraining_of[s.seed] for s in shared]
    return rows


def _row(
    benchmark: str,
    scores: Sequence[Score],
    reference: Sequence[Score],
    retention: float,
    plan: Plan,
) -> PairedScores:
    row = paired_scores(benchmark, scores, plan)
    less = paired_scores(benchmark, reference, plan)
    errors = row.minus(less.times(retention / 100)) if retention else row
    return errors.times(100 / float(less.values.mean()))


def _ends(interval: ScoreInterval | None, retention: float | None) -> dict[str, float | None]:
    """Returns the ends of a retention's interval; a retention is not below 0."""
    if interval is None or interval.low is None or interval.high is None or retention is None:
        return {"retention_low": None, "retention_high": None}
    return {
        "retention_low": max(retention + interval.low, 0.0),
        "retention_high": retention + interval.high,
    }


def _key(section: Section, cell: Cell) -> tuple[str, str, int]:
    return section.benchmark, cell.method, cell.budget
