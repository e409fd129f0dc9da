"""The 95 % interval and p-value of a mean, from a model of seeds and items.

A score, or the difference of two, is a mean over seeds and over items. Both are random draws, and
other draws would give another mean:

    score[seed, item] = mean + effect of the seed + effect of the item's source + interaction

The variance of the mean has two parts. The first is the variance of the seeds' means, divided by
the number of seeds; it holds the effect of the seed and the interaction. The second is what the
sources add: the variance due to their means over the seeds, less the interaction in it, which the
first part already counts. Each part has its own degrees of freedom, and so its own t:

    half width² = t(seeds)² · first part  +  t(sources)² · second part
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy import optimize, special, stats

from flows.report.items import Items
from flows.report.spread import LEVEL


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PairedScores:
    """One benchmark's scores, or differences between two methods' scores, by seed.

    Attributes:
      values: score or difference of each seed.
      sources: pictures or videos that the items are about, sorted; empty if the items are unknown.
      counts: number of items of each source.
      sums: sum of the items' scores or differences, by seed and source.
      training: name of the training; benchmarks with the same training share their checkpoints.
    """

    values: Float[np.ndarray, " S"]
    sources: tuple[str, ...] = ()
    counts: Int[np.ndarray, " C"] = dataclasses.field(default_factory=lambda: np.zeros(0, int))
    sums: Float[np.ndarray, "S C"] = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    training: str = ""

    @classmethod
    def of(
        cls, values: Sequence[float], runs: Sequence[Items] = (), training: str = ""
    ) -> "PairedScores":
        """Returns the scores of the seeds, with their items.

        Args:
          values: score of each seed.
          runs: items of each seed. They are dropped unless there are two sources or more, and all
            seeds have the same sources with the same number of items.
          training: name of the training.
        """
        # Two seeds, and three items about two pictures:
        #
        #   values    [66.7, 100]              one score per seed
        #   sources   ("a.jpg", "b.jpg")
        #   counts    [2, 1]                   items per source
        #   sums      [[100, 100],             seed by seed: of a.jpg one is right, b.jpg is right
        #              [200, 100]]             all are right
        #
        # Sums are enough: items of one source tend to be right or wrong together, and count as one
        # draw.
        paired = cls(values=np.array(values, dtype=np.float64), training=training)
        shapes = [{source: len(scores) for source, scores in run.items()} for run in runs]
        if not shapes or len(shapes[0]) < 2 or any(shape != shapes[0] for shape in shapes):
            return paired
        sources = tuple(sorted(shapes[0]))
        counts = np.array([shapes[0][source] for source in sources])
        sums = np.array([[math.fsum(run[source]) for source in sources] for run in runs])
        return dataclasses.replace(paired, sources=sources, counts=counts, sums=sums)

    def of_seeds(self, places: Sequence[int]) -> "PairedScores":
        """Returns the scores of the seeds at the given places."""
        sums = self.sums[list(places)] if self.sources else self.sums
        return dataclasses.replace(self, values=self.values[list(places)], sums=sums)

    def minus(self, other: "PairedScores") -> "PairedScores":
        """Returns the differences to another method with the same seeds.

        The items are dropped if the two methods have different ones.
        """
        # Subtracted seed by seed and source by source. What makes a picture hard, or a seed lucky,
        # for both methods is then gone, which is why the interval of a difference can be narrow.
        values = self.values - other.values
        if self.sources != other.sources or not np.array_equal(self.counts, other.counts):
            return PairedScores(values=values, training=self.training)
        return dataclasses.replace(self, values=values, sums=self.sums - other.sums)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreInterval:
    """A mean with its 95 % interval.

    Attributes:
      low: lower end of the interval; None with a single seed and unknown items.
      high: upper end of the interval.
      p: p-value against a true mean of 0; None like `low`.
      over: sources of variance in its width: "seeds and items", "seeds", "items" or "".
    """

    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    over: str = ""


def estimate_interval(rows: Sequence[PairedScores], pretrainings: Sequence[int]) -> ScoreInterval:
    """Returns the interval of the unweighted mean over some benchmarks.

    Trainings on different benchmarks share only the pretraining that they start from. With one
    pretraining, the variances of different trainings' seeds add up, with Satterthwaite's degrees of
    freedom, and the interval holds for that pretraining's checkpoints. With several, a pretraining
    and everything trained from it is one draw: its mean over seeds and benchmarks is one number
    (Multi-Bootstrap, arXiv:2106.16163). A source that several benchmarks ask about counts as one
    source.

    With a single seed the interval is over items only: it holds for that one training.

    Args:
      rows: scores of each benchmark, all with the same seeds.
      pretrainings: number of the pretraining that each seed starts from.
    """
    # A row of `draw` turns the seeds' values into one independent draw. With one pretraining each
    # seed is a draw; with several, a pretraining is, the mean of its seeds:
    #
    #     pretrainings 0 0 0 -> 1   0   0      pretrainings 0 1 1 -> 1   0   0
    #                           0   1   0                            0  1/2 1/2
    #                           0   0   1
    draws = sorted(set(pretrainings))
    if len(draws) == 1:
        draw = np.eye(len(pretrainings))
    else:
        draw = np.array([[p == d for p in pretrainings] for d in draws], dtype=np.float64)
        draw /= draw.sum(axis=1, keepdims=True)
    means = np.array([row.values for row in rows]) @ draw.T  # [benchmark, draw]
    mean = float(means.mean())
    parts = {}
    if len(draw) > 1:
        # Draws of one pretraining vary independently from training to training, so their variances
        # add up; a pretraining moves all trainings at once, which makes them one group.
        together = len(draws) > 1
        parts["seeds"] = _seeds_variance_part(
            means, ["" if together else row.training for row in rows]
        )
    if by_item := _items_variance_part(rows, draw):
        parts["items"] = by_item
    if not parts:
        return ScoreInterval(mean=mean)
    half = functools.partial(_half_width, [*parts.values()])
    # With one benchmark, one seed, and items that are right or wrong, there is an exact test; the
    # interval stays as it is.
    exact = mcnemar_test(rows[0]) if len(rows) == 1 else None
    return ScoreInterval(
        mean=mean,
        low=mean - half(LEVEL),
        high=mean + half(LEVEL),
        p=_chance_of_zero(mean, half) if exact is None else exact,
        over=" and ".join(parts),
    )


def mcnemar_test(row: PairedScores) -> float | None:
    """Returns the exact p-value of McNemar's test on the items where two methods differ.

    It is defined for one seed, and for items that are right or wrong and each have a source to
    themselves: items that share a source are correlated, which makes uneven splits more likely.
    None otherwise.

    Source: McNemar, Psychometrika 12(2), 1947; the exact form is the sign test's.
    """
    if len(row.values) != 1 or not row.sources or row.counts.max() > 1:
        return None
    # A difference of 100 is an item that only the first method has right. Items that both have
    # right, or wrong, say nothing about which is better.
    won, lost = (int((row.sums == value).sum()) for value in (100.0, -100.0))
    if won + lost != np.count_nonzero(row.sums):
        return None
    return float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0


def holm_correction(chances: Mapping[str, float]) -> dict[str, float]:
    """Returns the p-values by name, corrected for their number.

    If every corrected p-value up to 5 % is called a difference, at most 5 % of studies call any
    difference wrongly. Source: Holm, Scandinavian Journal of Statistics 6(2), 1979.
    """
    # Three p-values: 0.01, 0.02, 0.04 become 3 · 0.01, 2 · 0.02, 1 · 0.04, each at least as large
    # as the one before it.
    corrected, least = {}, 0.0
    for rank, name in enumerate(sorted(chances, key=lambda name: chances[name])):
        least = max(least, min(1.0, (len(chances) - rank) * chances[name]))
        corrected[name] = least
    return corrected


@dataclasses.dataclass(frozen=True)
class _VariancePart:
    """A part of a mean's variance, and its degrees of freedom."""

    variance: float
    freedom: float


def _half_width(parts: Sequence[_VariancePart], level: float) -> float:
    return math.sqrt(
        sum(special.stdtrit(p.freedom, 1 - level / 2) ** 2 * p.variance for p in parts)
    )


def _chance_of_zero(mean: float, half: "functools.partial[float]") -> float:
    """Returns the p-value of a mean: the level at which its interval just reaches 0."""
    # No spread at all: either the difference is 0, or it is certain.
    if half(LEVEL) == 0:
        return float(mean == 0)
    least = 1e-12
    if abs(mean) >= half(least):
        return least
    return optimize.root_scalar(lambda level: half(level) - abs(mean), bracket=(least, 1.0)).root


def _seeds_variance_part(
    means: Float[np.ndarray, "K U"], trainings: Sequence[str]
) -> _VariancePart:
    """Returns the seeds' part of the variance, from the spread of each training's draws."""
    num, draws = means.shape
    variances = []
    for name in dict.fromkeys(trainings):
        # The benchmarks of a training move together: first sum, then take the variance.
        share = means[[t == name for t in trainings]].sum(axis=0) / num
        variances.append(float(share.var(ddof=1)) / draws)
    total = math.fsum(variances)
    squares = math.fsum(v * v for v in variances)
    # Satterthwaite. total² >= squares, so there are at least as many degrees of freedom as one
    # training has; max() keeps that true under rounding.
    freedom = (draws - 1) * max(1.0, total**2 / squares if squares else 1.0)
    return _VariancePart(total, freedom)


def _items_variance_part(
    rows: Sequence[PairedScores], draw: Float[np.ndarray, "U S"]
) -> _VariancePart | None:
    """Returns the items' part of the variance; None where no row has items."""
    rows_with_items = [row for row in rows if row.sources]
    if not rows_with_items:
        return None
    # Two benchmarks that ask about the same picture share its column.
    place: dict[str, int] = {}
    for row in rows_with_items:
        for source in row.sources:
            place.setdefault(source, len(place))
    # How far each source moves the mean over all benchmarks, by draw: the sum of its items'
    # deviations from their benchmark's mean, weighted by their share in that mean.
    pulls = np.zeros((len(draw), len(place)))
    for row in rows_with_items:
        sums, num_items = draw @ row.sums, row.counts.sum()
        off = sums - row.counts * (sums.sum(axis=1, keepdims=True) / num_items)
        pulls[:, [place[source] for source in row.sources]] += off / num_items / len(rows)
    # The mean over draws, then its square summed over sources: sources are the independent ones.
    draws, num = pulls.shape
    pull = pulls.mean(axis=0)
    variance = float((pull**2).sum())
    if draws > 1:  # The interaction of seed and source is in the seeds' part already.
        variance -= float(((pulls - pull) ** 2).sum()) / (draws * (draws - 1))
    return _VariancePart(max(variance, 0.0) * num / (num - 1), num - 1)
