"""Compares methods, and the budgets of a method, on each benchmark and over several."""

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import Any

from flows.report.cells import Cell, Comparison, Plan, Score, Section
from flows.report.interval import estimate_interval, estimate_intervals
from flows.report.paired_scores import PairedScores
from flows.report.spread import holm_correction

Pair = tuple[str, int, str, int]
"""What is compared: a method and its budget, and the other and its budget."""

Differences = Mapping[Pair, tuple[PairedScores, list[int]]]
"""Pair -> differences for the seeds both have, and those seeds' pretrainings."""


CellPlace = tuple[str, str, int]
"""Benchmark, method and budget of a cell."""

CellRows = Mapping[CellPlace, PairedScores]
"""The scores of each cell that has some, by seed and item."""


def cell_rows(sections: Sequence[Section], plan: Plan) -> dict[CellPlace, PairedScores]:
    """Returns the rows of all cells with scores."""
    return {
        (cell.benchmark, cell.method, cell.budget): row_of(cell.benchmark, cell.scores, plan)
        for section in sections
        for cell in section.cells
        if cell.scores
    }


def row_of(benchmark: str, scores: Sequence[Score], plan: Plan) -> PairedScores:
    """Returns one or more seeds' scores on a benchmark, with the training that the plan names."""
    return PairedScores.of_scores(scores, plan.trainings.get(benchmark, benchmark))


def by_method(places: Collection[CellPlace]) -> Iterator[list[CellPlace]]:
    """Yields the places of each method at each budget: its seeds there tell of each other."""
    for method, budget in dict.fromkeys(place[1:] for place in places):
        yield [place for place in places if place[1:] == (method, budget)]


def compare_methods(
    sections: Sequence[Section], plan: Plan, rows: CellRows
) -> tuple[tuple[Section, ...], tuple[Comparison, ...]]:
    """Returns the sections with their comparisons filled in, and those over several benchmarks.

    Every two methods are compared at each budget that the plan has for both, then each budget of a
    method with its largest one, and with the reference's full one; on their common seeds. A
    comparison over several benchmarks uses those where both have every seed.
    """
    # By benchmark, then by what is compared:
    #
    #   differences[i][parcel, 64, m3, 64] = (score of parcel - score of m3, by seed), …
    #   comparisons[parcel, 64, m3, 64]["chartqa:test_human"] = mean, interval, p-value
    #
    # First all benchmarks, since their p-values are corrected together; then the means over them.
    differences = [dict(_method_differences(section, plan, rows)) for section in sections]
    keys = dict.fromkeys(key for of_section in differences for key in of_section)
    keys = sorted(keys, key=lambda key: key[1] != key[3])  # Those at one budget first.
    comparisons = {key: _benchmark_comparisons(key, sections, differences, plan) for key in keys}
    compared = tuple(
        dataclasses.replace(
            section,
            comparisons=tuple(
                of_key[section.benchmark]
                for of_key in comparisons.values()
                if section.benchmark in of_key
            ),
        )
        for section in sections
    )
    over = (_mean_comparison(key, sections, differences, comparisons[key], plan) for key in keys)
    return compared, tuple(entry for entry in over if entry is not None)


def _method_differences(
    section: Section, plan: Plan, rows: CellRows
) -> Iterator[tuple[Pair, tuple[PairedScores, list[int]]]]:
    """Yields the differences between the cells of a benchmark that are compared."""
    pretraining_of = plan.pretraining_of
    scored = {(c.method, c.budget) for c in section.cells if c.scores}
    # A section beside logs has methods of other systems, too, which no plan has.
    full = section.reference, section.full_budget
    for pair in _comparison_pairs(section.methods, section.budgets, full, scored):
        cells = section.cell(*pair[:2]), section.cell(*pair[2:])
        row, less, seeds = shared_rows(*cells, rows)
        if seeds:
            yield pair, (row.minus(less), [pretraining_of[seed] for seed in seeds])


def shared_rows(
    cell: Cell, other: Cell, rows: CellRows
) -> tuple[PairedScores, PairedScores, list[int]]:
    """Returns the rows of two cells of a benchmark over the seeds that both have, and these."""
    # Paired by seed: one that only one of them has is left out on both sides.
    own, others = ([score.seed for score in one.scores] for one in (cell, other))
    shared = [seed for seed in own if seed in others]
    row, less = (
        rows[one.benchmark, one.method, one.budget].of_seeds([seeds.index(s) for s in shared])
        for one, seeds in ((cell, own), (other, others))
    )
    return row, less, shared


def planned_pairs(plan: Plan) -> list[Pair]:
    """Returns the pairs that are compared on each benchmark once every planned cell has scores."""
    planned = {(m, b) for m in plan.methods for b in plan.budgets if plan.runs(m, b)}
    return [*_comparison_pairs(plan.methods, plan.budgets, (plan.reference, plan.full), planned)]


def _comparison_pairs(
    methods: Sequence[str],
    budgets: Sequence[int],
    full: tuple[str, int],
    scored: Set[tuple[str, int]],
) -> Iterator[Pair]:
    """Yields the pairs that are compared on a benchmark.

    Args:
      methods: methods of the benchmark, in their order.
      budgets: budgets of the benchmark.
      full: the reference and its budget.
      scored: method and budget of each cell with a score.
    """
    # Methods vanilla, m3, parcel, of which vanilla has 256 tokens alone, and budgets 64 and 256:
    #
    #   two methods              m3@256 - vanilla@256, parcel@256 - vanilla@256
    #                            parcel@64 - m3@64, parcel@256 - m3@256
    #   a method's budgets       m3@64 - m3@256, parcel@64 - parcel@256
    #   with the reference's     m3@64 - vanilla@256, parcel@64 - vanilla@256
    for other, method in itertools.combinations(methods, 2):
        for budget in budgets:
            if {(method, budget), (other, budget)} <= scored:
                yield method, budget, other, budget
    largest = {method: budget for method, budget in sorted(scored, key=lambda one: one[1])}
    for method in methods:
        for budget in budgets:
            if (method, budget) not in scored:
                continue
            if budget != largest[method]:
                yield method, budget, method, largest[method]
            if method != full[0] and budget != full[1] and full in scored:
                yield method, budget, *full


def _benchmark_comparisons(
    key: Pair,
    sections: Sequence[Section],
    differences: Sequence[Differences],
    plan: Plan,
) -> dict[str, Comparison]:
    """Returns benchmark -> comparison of a pair, corrected for the number of benchmarks."""
    # One row a benchmark, with the pretrainings of the seeds that both have.
    of_key = {
        section.benchmark: of_section[key]
        for section, of_section in zip(sections, differences, strict=True)
        if key in of_section
    }
    rows, numbers = zip(*of_key.values(), strict=True)
    # The difference of a noisy training has few squares, and these may be small by chance: it then
    # looks like the others. Those of both cells tell. Two budgets of a method share their noise.
    outliers = [
        key[0] != key[2]
        and any(section.cell(*cell).has_outlier_seeds for cell in (key[:2], key[2:]))
        for section in sections
        if section.benchmark in of_key
    ]
    intervals = dict(
        zip(of_key, estimate_intervals(rows, numbers, outliers, num_tests=len(rows)), strict=True)
    )
    # A pair is compared on every benchmark: that family is corrected, and no larger one.
    corrected = holm_correction(
        {name: interval.p for name, interval in intervals.items() if interval.p is not None}
    )
    return {
        name: Comparison(
            **dataclasses.asdict(interval),
            **_compared_fields(key, plan),
            benchmarks=(name,),
            holm=corrected.get(name),
        )
        for name, interval in intervals.items()
    }


def _compared_fields(pair: Pair, plan: Plan) -> dict[str, Any]:
    """Returns the fields of a comparison that say what is compared."""
    method, budget, other, other_budget = pair
    return {
        "method": method,
        "other": other,
        "budget": budget,
        "other_budget": None if other_budget == budget else other_budget,
        "resolution": plan.resolution,
        "backbone": plan.backbone,
    }


def _mean_comparison(
    key: Pair,
    sections: Sequence[Section],
    differences: Sequence[Differences],
    comparisons: Mapping[str, Comparison],
    plan: Plan,
) -> Comparison | None:
    """Returns the comparison over the complete benchmarks; None if there are fewer than two."""
    method, budget, other, other_budget = key
    complete = {
        section.benchmark: of_section[key][0]
        for section, of_section in zip(sections, differences, strict=True)
        if section.in_means
        and section.cell(method, budget).complete
        and section.cell(other, other_budget).complete
    }
    # Over one benchmark it would repeat that benchmark's own comparison.
    if len(complete) < 2:
        return None
    # Counted as better or worse is what stands after the correction, benchmark by benchmark.
    significant = [comparisons[name].mean for name in complete if comparisons[name].stands]
    return Comparison(
        **dataclasses.asdict(
            estimate_interval([*complete.values()], [*plan.pretraining_of.values()], num_tests=1)
        ),
        **_compared_fields(key, plan),
        benchmarks=tuple(complete),
        better=sum(mean > 0 for mean in significant),
        worse=sum(mean < 0 for mean in significant),
    )
