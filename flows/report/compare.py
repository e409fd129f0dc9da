"""Compares methods with each other, per benchmark and over several benchmarks."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from flows.report.cells import Comparison, Plan, Score, Section
from flows.report.interval import estimate_interval, estimate_intervals
from flows.report.items import is_percentage
from flows.report.paired_scores import PairedScores
from flows.report.spread import holm_correction

Differences = Mapping[tuple[str, str, int], tuple[PairedScores, list[int]]]
"""(method, other, budget) -> differences for the seeds both have, and those seeds' pretrainings."""


def compare_methods(
    sections: Sequence[Section], plan: Plan
) -> tuple[tuple[Section, ...], tuple[Comparison, ...]]:
    """Returns the sections with their comparisons filled in, and those over several benchmarks.

    Every two methods are compared at each budget that the plan has for both, on their common
    seeds. A comparison over several benchmarks uses those where both methods have every seed.
    """
    # By benchmark, then by what is compared:
    #
    #   differences[i][parcel, vanilla, 64] = (score of parcel - score of vanilla, by seed), …
    #   comparisons[parcel, vanilla, 64]["chartqa:test_human"] = mean, interval, p-value
    #
    # First all benchmarks, since their p-values are corrected together; then the means over them.
    differences = [dict(_method_differences(section, plan)) for section in sections]
    keys = dict.fromkeys(key for of_section in differences for key in of_section)
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
    section: Section, plan: Plan
) -> Iterator[tuple[tuple[str, str, int], tuple[PairedScores, list[int]]]]:
    """Yields the differences between every two methods of a benchmark.

    A difference is the score of the later method - that of the earlier one. They come in the order
    of the plan's methods, then of its budgets.
    """
    # Methods vanilla, m3, parcel give m3 - vanilla, parcel - vanilla, parcel - m3.
    rows = {
        (c.method, c.budget): paired_scores(c.benchmark, c.scores, plan)
        for c in section.cells
        if c.scores
    }
    for other, method in itertools.combinations(section.methods, 2):
        for budget in section.budgets:
            method_seeds = [s.seed for s in section.cell(method, budget).scores]
            other_seeds = [s.seed for s in section.cell(other, budget).scores]
            # Paired by seed: one that only one of them has is left out on both sides.
            shared_seeds = [seed for seed in method_seeds if seed in other_seeds]
            if shared_seeds:
                row = rows[method, budget].of_seeds(
                    [method_seeds.index(seed) for seed in shared_seeds]
                )
                less = rows[other, budget].of_seeds(
                    [other_seeds.index(seed) for seed in shared_seeds]
                )
                numbers = [plan.pretraining_of[seed] for seed in shared_seeds]
                yield (method, other, budget), (row.minus(less), numbers)


def paired_scores(benchmark: str, scores: Sequence[Score], plan: Plan) -> PairedScores:
    """Returns one or more seeds' scores on a benchmark, with their items."""
    return PairedScores.of(
        [s.score for s in scores],
        [s.items for s in scores],
        plan.trainings.get(benchmark, benchmark),
        is_percentage=is_percentage(scores[0].metric),
    )


def _benchmark_comparisons(
    key: tuple[str, str, int],
    sections: Sequence[Section],
    differences: Sequence[Differences],
    plan: Plan,
) -> dict[str, Comparison]:
    """Returns benchmark -> comparison of two methods, corrected for the number of benchmarks."""
    method, other, budget = key
    # One row a benchmark, with the pretrainings of the seeds that both have.
    of_key = {
        section.benchmark: of_section[key]
        for section, of_section in zip(sections, differences, strict=True)
        if key in of_section
    }
    rows, numbers = zip(*of_key.values(), strict=True)
    intervals = dict(zip(of_key, estimate_intervals(rows, numbers), strict=True))
    # Two methods at one budget are compared on every benchmark: that family is corrected, and no
    # larger one.
    corrected = holm_correction(
        {name: interval.p for name, interval in intervals.items() if interval.p is not None}
    )
    return {
        name: Comparison(
            **dataclasses.asdict(interval),
            method=method,
            other=other,
            budget=budget,
            benchmarks=(name,),
            holm=corrected.get(name),
            resolution=plan.resolution,
            backbone=plan.backbone,
        )
        for name, interval in intervals.items()
    }


def _mean_comparison(
    key: tuple[str, str, int],
    sections: Sequence[Section],
    differences: Sequence[Differences],
    comparisons: Mapping[str, Comparison],
    plan: Plan,
) -> Comparison | None:
    """Returns the comparison over the complete benchmarks; None if there are fewer than two."""
    method, other, budget = key
    complete = {
        section.benchmark: of_section[key][0]
        for section, of_section in zip(sections, differences, strict=True)
        if section.in_means
        and section.cell(method, budget).complete
        and section.cell(other, budget).complete
    }
    # Over one benchmark it would repeat that benchmark's own comparison.
    if len(complete) < 2:
        return None
    # Counted as better or worse is what stands after the correction, benchmark by benchmark.
    significant = [comparisons[name].mean for name in complete if comparisons[name].is_sure]
    return Comparison(
        **dataclasses.asdict(
            estimate_interval([*complete.values()], [*plan.pretraining_of.values()])
        ),
        method=method,
        other=other,
        budget=budget,
        benchmarks=tuple(complete),
        better=sum(mean > 0 for mean in significant),
        worse=sum(mean < 0 for mean in significant),
        resolution=plan.resolution,
        backbone=plan.backbone,
    )
