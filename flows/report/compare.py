"""Compares methods with each other: per benchmark, and over all of them."""

import dataclasses
import itertools
from collections.abc import Sequence

from flows.report.cells import Cell, Comparison, Plan, Score, Section
from flows.report.interval import Paired, estimate, holm
from flows.report.spread import LEVEL


def paired(scores: Sequence[Score], training: str = "") -> Paired:
    """Returns the scores of one method on one benchmark, by seed."""
    items = tuple(score.items for score in scores)
    values = tuple(score.score for score in scores)
    return Paired(values=values, items=items if all(items) else (), training=training)


def compare(sections: Sequence[Section], plan: Plan) -> tuple[Section, ...]:
    """Returns the sections with every two of their methods compared, at budgets both have."""
    found = {s.benchmark: [_one(a, b, plan) for a, b in _pairs(s, plan)] for s in sections}
    found = {name: [c for c in own if c is not None] for name, own in found.items()}
    chances: dict[tuple[str, str, int], dict[str, float]] = {}
    for name, own in found.items():
        for one in own:
            if one.p is not None:
                chances.setdefault((one.method, one.other, one.budget), {})[name] = one.p
    corrected = {key: holm(of_pair) for key, of_pair in chances.items()}

    def with_holm(name: str, one: Comparison) -> Comparison:
        family = corrected.get((one.method, one.other, one.budget), {})
        return dataclasses.replace(one, holm=family.get(name))

    return tuple(
        dataclasses.replace(
            section,
            comparisons=tuple(with_holm(section.benchmark, c) for c in found[section.benchmark]),
        )
        for section in sections
    )


def compare_over(sections: Sequence[Section], plan: Plan) -> tuple[Comparison, ...]:
    """Returns the same comparisons over all benchmarks on which both methods have every seed."""
    named = {(c.method, c.other, c.budget, s.benchmark): c for s in sections for c in s.comparisons}
    order = dict.fromkeys(key[:3] for key in named)
    found = []
    for method, other, budget in order:
        complete = [
            s
            for s in sections
            if s.cell(method, budget).complete and s.cell(other, budget).complete
        ]
        if len(complete) < 2:
            continue
        rows = [_differences(s.cell(method, budget), s.cell(other, budget), plan) for s in complete]
        over = estimate([row for row, _ in rows], list(plan.pretraining_of.values()))
        own = [named[method, other, budget, s.benchmark] for s in complete]
        sure = [c.mean for c in own if c.holm is not None and c.holm <= LEVEL]
        found.append(
            Comparison(
                **dataclasses.asdict(over),
                method=method,
                other=other,
                budget=budget,
                benchmarks=tuple(s.benchmark for s in complete),
                better=sum(mean > 0 for mean in sure),
                worse=sum(mean < 0 for mean in sure),
            )
        )
    return tuple(found)


def _pairs(section: Section, plan: Plan) -> list[tuple[Cell, Cell]]:
    """Returns the cells to compare, the later method of the plan first."""
    return [
        (section.cell(method, budget), section.cell(other, budget))
        for other, method in itertools.combinations(section.methods, 2)
        for budget in section.budgets
        if plan.runs(method, budget) and plan.runs(other, budget)
    ]


def _one(cell: Cell, other: Cell, plan: Plan) -> Comparison | None:
    row, pretrainings = _differences(cell, other, plan)
    if not row.values:
        return None
    return Comparison(
        **dataclasses.asdict(estimate([row], pretrainings)),
        method=cell.method,
        other=other.method,
        budget=cell.budget,
        benchmarks=(cell.benchmark,),
    )


def _differences(cell: Cell, other: Cell, plan: Plan) -> tuple[Paired, list[int]]:
    """Returns the differences of the seeds that both have, and those seeds' pretrainings."""
    theirs = {score.seed: score for score in other.scores}
    both = [score for score in cell.scores if score.seed in theirs]
    training = plan.trainings.get(cell.benchmark, cell.benchmark)
    own = paired(both, training)
    row = own.minus(paired([theirs[score.seed] for score in both], training))
    return row, [plan.pretraining_of[score.seed] for score in both]
