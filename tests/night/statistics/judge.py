"""Judges a report's intervals and stars by studies of equal methods, drawn in many shapes.

    python -m tests.night.statistics --studies 200 --only "noisy"

Each study becomes a whole report. A line of the result:

    shape          95 %   99.8 %   stars   width    over benchmarks: 95 %   width
    one noisy …    95.1   99.7     4.0     1.12                      94.0   1.21

95 %, 99.8 %: how often the interval of a difference holds 0. stars: how many tables call any
difference, after the correction, of methods that are equal. width: mean width, over that of an
oracle who knows the variance of the difference, and who takes Student's t only where fewer than 6
degrees of freedom are pooled.
"""

import dataclasses
import math
import statistics

import numpy as np
from scipy import stats

from flows.report.build import build_report
from flows.report.cells import Comparison, Plan, Report, Score
from tests.night.statistics.shapes import Drawn, Shape

METHODS = ("vanilla", "parcel")
"""The two methods; the first is the reference."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgement:
    """How a report did on studies of one shape.

    Attributes:
      studies: number of studies.
      held: share of differences whose p-value is above 5 %, of those that have one.
      held_far: share above 0.2 %.
      starred: share of tables with a difference that stands after the correction.
      width: mean width of the intervals over the oracle's.
      mean_held: like `held`, of the difference over all benchmarks; NaN with one benchmark.
      mean_width: like `width`, of that difference.
    """

    studies: int
    held: float
    held_far: float
    starred: float
    width: float
    mean_held: float
    mean_width: float


def judge(shape: Shape, studies: int, seed: int) -> Judgement:
    """Judges reports of as many studies of a shape."""
    rng = np.random.default_rng(seed)
    reports = [report_of(shape.draw(rng), shape.pretrainings) for _ in range(studies)]
    single = [[c for s in report.sections for c in s.comparisons] for report in reports]
    over = [list(report.comparisons) for report in reports]
    chances = np.array([c.p for table in single for c in table if c.p is not None])
    of_means = np.array([c.p for table in over for c in table if c.p is not None])
    return Judgement(
        studies=studies,
        held=float(np.mean(chances > 0.05)),
        held_far=float(np.mean(chances > 0.002)),
        starred=statistics.mean(any(c.stands for c in table) for table in single),
        width=_width(single, shape.freedom),
        mean_held=float(np.mean(of_means > 0.05)) if of_means.size else math.nan,
        mean_width=_width(over, shape.freedom) if of_means.size else math.nan,
    )


def report_of(drawn: list[Drawn], pretrainings: tuple[int, ...]) -> Report:
    """Returns the report of a study's items."""
    seeds = tuple(range(1, len(pretrainings) + 1))
    names = [f"b{k}" for k in range(len(drawn))]
    scores = []
    for name, of_benchmark in zip(names, drawn, strict=True):
        ends = np.cumsum(of_benchmark.counts)
        metric = "accuracy" if of_benchmark.is_percentage else "cider"
        for method, of_method in zip(METHODS, of_benchmark.items, strict=True):
            for seed, row in zip(seeds, of_method, strict=True):
                values = np.split(row, ends[:-1])
                items = {
                    source: tuple(each.tolist())
                    for source, each in zip(of_benchmark.sources, values, strict=True)
                }
                scores.append(
                    Score(
                        benchmark=name,
                        method=method,
                        budget=256,
                        seed=seed,
                        score=float(row.mean()),
                        metric=metric,
                        artifact="",
                        items=items,
                    )
                )
    plan = Plan(
        methods=METHODS,
        benchmarks=tuple(names),
        budgets=(256,),
        seeds=seeds,
        pretrainings=pretrainings if max(pretrainings) else (),
    )
    return build_report(plan, scores, dict.fromkeys(names, 0.0))


def _width(tables: list[list[Comparison]], freedom: int) -> float:
    """Returns the mean width of intervals over that of the oracle's, benchmark by benchmark."""
    quantile = stats.norm.ppf(0.975) if freedom >= 6 or freedom < 1 else stats.t.ppf(0.975, freedom)
    ratios = []
    for column in zip(*tables, strict=True):
        spread = statistics.stdev(c.mean for c in column)
        widths = [c.high - c.low for c in column if c.low is not None and c.high is not None]
        if widths:
            ratios.append(statistics.mean(widths) / (2 * float(quantile) * spread))
    return statistics.mean(ratios)
