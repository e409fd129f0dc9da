"""The 95 % interval and p-value of a mean, from a model of seeds and items.

A score, or the difference of two, is a mean over seeds and over items. Both are random draws, and
other draws would give another mean:

    score[seed, item] = mean + effect of the seed + effect of the item's source + interaction + rest

The variance of the mean is a sum of parts, none of which is known (`variance.py`):

    seeds      for each training, the variance of its seeds' means, divided by the number of seeds.
               It holds the effect of the seed and the interaction (`seeds_variance.py`)
    sources    for each benchmark, or all that share sources, what these add: the variance due to
               their means over the seeds, less the interaction in it, which the seeds' part already
               counts (`sources_variance.py`)

A score that stays within 0-100 gets a binomial interval of the same width instead, which stays
there, too. How often these intervals hold is simulated in tests/flows/report.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int
from scipy import optimize, special, stats

from flows.report.paired_scores import SCALE, PairedScores
from flows.report.seeds_variance import (
    SeedSpread,
    find_outliers,
    seeds_variances,
    with_typical_answers,
)
from flows.report.sources_variance import (
    SourceSpread,
    linked_rows,
    mean_over_clusters,
    source_spread,
)
from flows.report.spread import LEVEL, NO_VARIANCE
from flows.report.variance import Variance

PRIOR_ANSWERS = 0.5
"""Wrong answers that are added to the right or wrong ones before their variance is estimated.

Twenty right answers of twenty have no spread, but their score is not certain. Half an answer is
Jeffreys' prior (Brown, Cai and DasGupta, Statistical Science 16(2), 2001).
"""

PRIOR_CORRELATION = 0.25
"""Correlation of answers about one source, of several seeds or items, while there is no spread."""

POWER = 0.8
"""Share of studies that call a difference which is as large as their `detectable`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreInterval:
    """A mean with its interval.

    Attributes:
      low: lower end of the interval; None with unknown items and a single seed, or several whose
        values are the same: they do not say how far others would be.
      high: upper end of the interval.
      p: p-value against a true mean of 0; None like `low`.
      over: sources of variance in its width: "seeds and items", "seeds", "items" or "".
      seeds: number of seeds in the mean.
      pretrainings: number of pretrainings that these seeds start from.
      items: number of items under each seed; 0 if they are unknown.
      pictures: number of pictures or videos that these items are about.
      detectable: distance from 0 that a true mean needs to be called different from 0 in 80 of 100
        such studies; None like `low`, and where it was not asked for.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    over: str = ""
    seeds: int = 0
    pretrainings: int = 1
    items: int = 0
    pictures: int = 0
    detectable: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Spreads:
    """The parts of the variance of a mean over some benchmarks.

    Attributes:
      rows: the benchmarks.
      seeds: of each training, the spread of its seeds' means; of the pretrainings, if several.
      sources: of each group of benchmarks that share sources, the spread of these.
      pretrainings: number of pretrainings.
    """

    rows: Sequence[PairedScores]
    seeds: Sequence[SeedSpread]
    sources: Sequence[SourceSpread]
    pretrainings: int

    @classmethod
    def of(
        cls, rows: Sequence[PairedScores], pretrainings: Sequence[int], is_outlier: bool = False
    ) -> "_Spreads":
        # A draw is what other draws are independent of: a seed, or with several pretrainings each
        # of those. `clusters` has the draw of each seed.
        _, clusters = np.unique(np.asarray(pretrainings), return_inverse=True)
        num_pretrainings = int(clusters.max()) + 1
        seeds = []
        if num_pretrainings > 1:
            seeds = [_pretraining_spread(rows, clusters)]
        else:
            clusters = np.arange(len(clusters))
            if len(clusters) > 1:
                names = dict.fromkeys(row.training for row in rows)
                seeds = [_training_spread(rows, name, clusters) for name in names]
                if is_outlier:  # What answers make of it tells nothing, nor do other trainings.
                    seeds = [dataclasses.replace(spread, answers=None) for spread in seeds]
        groups = linked_rows([row for row in rows if row.sources])
        sources = [source_spread(group, clusters, len(rows)) for group in groups]
        return cls(rows=rows, seeds=seeds, sources=sources, pretrainings=num_pretrainings)


def estimate_interval(
    rows: Sequence[PairedScores],
    pretrainings: Sequence[int],
    *,
    level: float = LEVEL,
    num_tests: int = 0,
) -> ScoreInterval:
    """Returns the interval of the unweighted mean over some benchmarks.

    Trainings on different benchmarks share only the pretraining that they start from. With one
    pretraining, the variances of different trainings' seeds add up, and the interval holds for that
    pretraining's checkpoints. With several, a pretraining and everything trained from it is one
    cluster (Multi-Bootstrap, arXiv:2106.16163). The mean is over all seeds, however many each
    pretraining has.

    With a single seed the interval is over items only: it holds for that one training.

    Args:
      rows: scores of each benchmark, all with the same seeds.
      pretrainings: number of the pretraining that each seed starts from.
      level: share of intervals that may miss the truth.
      num_tests: number of means that are tested together, for what is detectable; 0 leaves it out.
    """
    spreads = _Spreads.of(rows, pretrainings)
    variances = seeds_variances(with_typical_answers(spreads.seeds))
    return _interval_from_variances(spreads, variances, level, num_tests)


def estimate_intervals(
    rows: Sequence[PairedScores],
    pretrainings: Sequence[Sequence[int]],
    outliers: Sequence[bool] = (),
    *,
    level: float = LEVEL,
    num_tests: int = 0,
) -> list[ScoreInterval]:
    """Returns the interval of each of several benchmarks.

    How far seeds differ on one of them is learned from the others, too.

    Args:
      rows: scores of each benchmark.
      pretrainings: for each, number of the pretraining that each of its seeds starts from.
      outliers: for each, whether its seeds are known to be unlike the others'; none by default.
      level: share of intervals that may miss the truth.
      num_tests: as for `estimate_interval`.
    """
    flags = outliers or [False] * len(rows)
    single = [
        _Spreads.of([row], numbers, is_outlier)
        for row, numbers, is_outlier in zip(rows, pretrainings, flags, strict=True)
    ]
    variances = iter(seeds_variances([seeds for spreads in single for seeds in spreads.seeds]))
    return [
        _interval_from_variances(
            spreads, list(itertools.islice(variances, len(spreads.seeds))), level, num_tests
        )
        for spreads in single
    ]


def find_outlier_rows(
    rows: Sequence[PairedScores], pretrainings: Sequence[Sequence[int]]
) -> list[bool]:
    """Returns whether the seeds of each benchmark differ far more than those of the others."""
    single = [_Spreads.of([row], of).seeds for row, of in zip(rows, pretrainings, strict=True)]
    outliers = iter(find_outliers([spread for seeds in single for spread in seeds]))
    return [any([next(outliers) for _ in seeds]) for seeds in single]


def _interval_from_variances(
    spreads: _Spreads, seed_variances: Sequence[Variance], level: float, num_tests: int
) -> ScoreInterval:
    """Returns the interval of a mean, where the variances of its seeds' means are given.

    Args:
      spreads: the parts of its variance.
      seed_variances: of each of `spreads.seeds`, the variance.
      level: share of intervals that may miss the truth.
      num_tests: as for `estimate_interval`.
    """
    rows, sources = spreads.rows, spreads.sources
    mean = float(np.array([row.values for row in rows]).mean())
    facts = {
        "mean": mean,
        "seeds": rows[0].num_seeds,
        "pretrainings": spreads.pretrainings,
        "items": sum(int(row.counts.sum()) for row in rows),
        "pictures": len(set[str]().union(*(row.sources for row in rows))),
    }
    squares = sum(spread.variance for spread in spreads.seeds)
    if not sources and squares < NO_VARIANCE:
        return ScoreInterval(**facts)
    over = " and ".join(["seeds"] * bool(seed_variances) + ["items"] * bool(sources))
    variance = Variance.sum_of([*seed_variances, *(source.variance for source in sources)])
    percentage = rows[0] if len(rows) == 1 and (rows[0].low, rows[0].high) == (0.0, SCALE) else None
    if (
        percentage
        and percentage.is_binary
        and percentage.num_seeds == 1
        and percentage.counts.max() == 1
    ):
        # Single answers of one training have the binomial variance itself, which is not estimated.
        variance = Variance.known(sources[0].squares)
    p = variance.chance_beyond(mean)
    if percentage:
        half = variance.half_width(level)
        low, high = _percentage_interval(mean, half, percentage, level)
        return ScoreInterval(**facts, low=low, high=high, p=p, over=over)
    least = _least_variance(rows)
    p, half = max(p, least.chance_beyond(mean)), _half_width(variance, least, level)
    if not half:  # No score differs from another, and their scale does not say how far others may.
        return ScoreInterval(**facts)
    detectable = None
    if num_tests:
        detectable = detectable_effect(
            lambda of: _half_width(variance, least, of), num_tests, level
        )
    low = max(mean - half, float(np.mean([row.low for row in rows])))
    high = min(mean + half, float(np.mean([row.high for row in rows])))
    # With one benchmark, one seed, and items that are right or wrong, there is an exact test.
    # Neither calls a difference that the other does not.
    exact = mcnemar_test(rows[0]) if len(rows) == 1 else None
    if exact is not None and exact > p:
        p = exact
        if p > level:
            low, high = min(low, 0.0), max(high, 0.0)
    return ScoreInterval(**facts, low=low, high=high, p=p, over=over, detectable=detectable)


def detectable_effect(
    half_width: Callable[[float], float], num_tests: int, level: float = LEVEL
) -> float:
    """Returns the true mean that a share `POWER` of studies calls different from 0.

    Args:
      half_width: function from a level to half the width of the mean's interval.
      num_tests: number of means that are tested together.
      level: level of all tests, which each has over their number (Bonferroni): what is called at
        that, Holm's correction calls whatever the others are.
    """
    # What is called lies beyond the first half width; a mean as far beyond that as the second is
    # called by all studies but those that err by more to one side.
    return half_width(level / num_tests) + half_width(2 * (1 - POWER))


def _half_width(variance: Variance, least: Variance, level: float) -> float:
    """Returns the larger half width of two variances."""
    half = variance.half_width(level)
    return half if least.chance_beyond(half) <= level else least.half_width(level)


def mcnemar_test(row: PairedScores) -> float | None:
    """Returns the exact p-value of McNemar's test on the items where two methods differ.

    It is defined for one seed, and for items that are right or wrong and each have a source to
    themselves: items that share a source are correlated, which makes uneven splits more likely.
    None otherwise.

    Source: McNemar, Psychometrika 12(2), 1947; the exact form is the sign test's.
    """
    is_difference = row.low == -SCALE
    if row.num_seeds != 1 or not (row.is_binary and is_difference) or row.counts.max() > 1:
        return None
    # A difference of 100 is an item that only the first method has right. Items that both have
    # right, or wrong, say nothing about which is better.
    won, lost = (int((row.items == value).sum()) for value in (SCALE, -SCALE))
    return float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0


def _pretraining_spread(
    rows: Sequence[PairedScores], clusters: Int[np.ndarray, " S"]
) -> SeedSpread:
    """Returns the spread of the mean over pretrainings, with all that is trained from each."""
    # A pretraining moves all trainings at once: their mean is one value per seed.
    by_seed, counts = np.mean([row.values for row in rows], axis=0), np.bincount(clusters)
    means = np.bincount(clusters, by_seed) / counts
    rest = float(((by_seed - means[clusters]) ** 2).sum())
    variance = mean_over_clusters(means, counts, rest)
    return SeedSpread(training=None, variance=variance, freedom=len(counts) - 1)


def _training_spread(
    rows: Sequence[PairedScores], training: str, clusters: Int[np.ndarray, " S"]
) -> SeedSpread:
    """Returns the spread of a training's mean over its seeds."""
    # The benchmarks of a training move together: first sum, then take the variance.
    own = [row for row in rows if row.training == training]
    values = np.sum([row.values for row in own], axis=0) / len(rows)
    spread = SeedSpread(
        training=training,
        variance=float(values.var(ddof=1)) / len(values),
        freedom=len(values) - 1,
    )
    if not all(row.sources for row in own):
        return spread
    answers = source_spread(own, clusters, len(rows))
    return dataclasses.replace(
        spread,
        answers=answers.interaction,
        answers_freedom=answers.interaction_freedom,
        num_answers=sum(int(row.counts.sum()) for row in own),
    )


def _least_variance(rows: Sequence[PairedScores]) -> Variance:
    """Returns the variance as if one answer of each benchmark differed, by the largest deviation.

    Two methods that answer alike are not known to be alike: one answer may still differ by all of
    the scale.
    """
    bounded = [row for row in rows if math.isfinite(row.low) and row.sources]
    if not bounded:
        return Variance.known(0.0)
    least = 0.0
    for row in bounded:
        largest = float(np.abs(row.items - row.items.mean()).max())
        scale = largest if largest**2 > NO_VARIANCE else row.high
        least += (scale / _num_prior_answers(row) / len(rows)) ** 2
    return Variance.estimated(least, min(len(row.sources) for row in bounded) - 1)


def _num_prior_answers(row: PairedScores) -> float:
    """Returns how many independent answers the items are worth, where nothing is known of it.

    It is between the number of sources, if all seeds and all items of a source agree, and the
    number of all answers: answers about a source are taken to correlate by `PRIOR_CORRELATION`.
    """
    share = PRIOR_CORRELATION
    return 1 / ((1 - share) / row.items.size + share / row.num_effective_sources)


def _percentage_interval(
    mean: float, half: float, row: PairedScores, level: float
) -> tuple[float, float]:
    """Returns the interval of a score within 0-100.

    It is the binomial one, of as many independent answers as would give half the width (Korn and
    Graubard, Survey Methodology 24(2), 1998); and with half the chance of the very score, which
    makes it hold as often as it says on average over the scores (mid-P, Lancaster, JASA 56, 1961).
    """
    share = mean / SCALE
    variance = (half / SCALE / float(special.ndtri(1 - level / 2))) ** 2
    prior = 0.0
    if row.sources:
        prior = PRIOR_ANSWERS / row.num_effective_sources
        variance += prior / _num_prior_answers(row)
    low, high = binomial_interval(share, (share * (1 - share) + prior) / variance, level)
    return SCALE * low, SCALE * high


def binomial_interval(share: float, answers: float, level: float) -> tuple[float, float]:
    """Returns the mid-P interval of a share of right answers; the number may be a fraction."""
    low = _binomial_end(answers * share, answers, level)
    return low, 1 - _binomial_end(answers * (1 - share), answers, level)


def _binomial_end(right: float, answers: float, level: float) -> float:
    """Returns the least share of right answers that `right` of some answers are compatible with."""
    wrong = answers - right
    tiny = 1e-9 * answers

    def excess(share: float) -> float:
        more = special.betainc(right + 1, wrong, share) if wrong > tiny else 0.0
        return (special.betainc(right, wrong + 1, share) + more) / 2 - level / 2

    return float(optimize.brentq(excess, 0.0, 1.0, xtol=1e-12)) if right > tiny else 0.0  # type: ignore[arg-type]
