"""How sure a mean is: an interval from a model of seeds and items, and the chance behind it.

A score, or the difference of two, is a mean over seeds and over items. Both are draws of many that
might have been, and other draws would give another mean:

    score[seed, item] = mean + of the seed + of the item's source + of both together

The seeds' means spread by what is the seed's, and by what is of both together; that spread divided
by the number of seeds is the first part of the variance. What the sources add to it is the spread
of their means over the seeds, less what of that is of both together: the second part. Each part has
its own degrees of freedom, and so its own t:

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
class Paired:
    """One benchmark's scores, or differences between two methods' scores, by seed.

    Attributes:
      values: one per seed.
      sources: what its items are about, sorted; none where the items are unknown.
      counts: items of each source.
      sums: of the items' scores or differences, by seed and source.
      training: names the training; rows of the same one share their checkpoints.
    """

    values: Float[np.ndarray, " S"]
    sources: tuple[str, ...] = ()
    counts: Int[np.ndarray, " C"] = dataclasses.field(default_factory=lambda: np.zeros(0, int))
    sums: Float[np.ndarray, "S C"] = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    training: str = ""

    @classmethod
    def of(
        cls, values: Sequence[float], runs: Sequence[Items] = (), training: str = ""
    ) -> "Paired":
        """Returns scores by seed, with their items.

        Args:
          values: one per seed.
          runs: the items of each seed. Unknown unless all seeds have as many of the same sources,
            of two or more.
          training: as in the class.
        """
        found = cls(values=np.array(values, dtype=np.float64), training=training)
        shapes = [{source: len(scores) for source, scores in run.items()} for run in runs]
        if not shapes or len(shapes[0]) < 2 or any(shape != shapes[0] for shape in shapes):
            return found
        sources = tuple(sorted(shapes[0]))
        counts = np.array([shapes[0][source] for source in sources])
        sums = np.array([[math.fsum(run[source]) for source in sources] for run in runs])
        return dataclasses.replace(found, sources=sources, counts=counts, sums=sums)

    def of_seeds(self, places: Sequence[int]) -> "Paired":
        """Returns the scores of some seeds, by their places."""
        sums = self.sums[list(places)] if self.sources else self.sums
        return dataclasses.replace(self, values=self.values[list(places)], sums=sums)

    def minus(self, other: "Paired") -> "Paired":
        """Returns the differences to another method, with the same seeds and on the same items."""
        values = self.values - other.values
        if self.sources != other.sources or not np.array_equal(self.counts, other.counts):
            return Paired(values=values, training=self.training)
        return dataclasses.replace(self, values=values, sums=self.sums - other.sums)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean, and how far it may be off.

    Attributes:
      low: lower end of the 95 % interval; None where neither seeds nor items tell.
      high: its upper end.
      p: the chance of a mean as far from 0 where the truth is 0; None likewise.
      over: what its width counts: "seeds and items", "seeds", "items" or "".
    """

    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    over: str = ""


def estimate(rows: Sequence[Paired], pretrainings: Sequence[int]) -> Interval:
    """Returns the interval of the unweighted mean over some benchmarks.

    Trainings on different benchmarks have nothing in common but what they start from. So with one
    pretraining the seeds' parts of different trainings add up, with degrees of freedom after
    Satterthwaite, and the interval holds for these checkpoints. With several, a pretraining and
    all that follows from it is one draw, and its mean over seeds and benchmarks one number
    (Multi-Bootstrap, arXiv:2106.16163). A source that several benchmarks ask about is
    one source.

    Where there is a single seed, the interval is over items: it holds for this training.

    Args:
      rows: one per benchmark, all of the same seeds.
      pretrainings: number of the pretraining that each seed starts from.
    """
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
        together = len(draws) > 1
        parts["seeds"] = _seeds_part(means, ["" if together else row.training for row in rows])
    if by_item := _items_part(rows, draw):
        parts["items"] = by_item
    if not parts:
        return Interval(mean=mean)
    half = functools.partial(_half_width, [*parts.values()])
    exact = mcnemar(rows[0]) if len(rows) == 1 else None
    return Interval(
        mean=mean,
        low=mean - half(LEVEL),
        high=mean + half(LEVEL),
        p=_chance(mean, half) if exact is None else exact,
        over=" and ".join(parts),
    )


def mcnemar(row: Paired) -> float | None:
    """Returns the exact chance of as uneven a split of the items on which two methods differ.

    Only of one seed, and of items that are right or wrong, each about a source of its own: what
    several items share makes splits more uneven. None elsewhere.

    Source: McNemar, Psychometrika 12(2), 1947; the exact form is the sign test's.
    """
    if len(row.values) != 1 or not row.sources or row.counts.max() > 1:
        return None
    won, lost = (int((row.sums == value).sum()) for value in (100.0, -100.0))
    if won + lost != np.count_nonzero(row.sums):
        return None
    return float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0


def holm(chances: Mapping[str, float]) -> dict[str, float]:
    """Returns chances by name, corrected for their number.

    Calling those up to 5 % differences, there is a wrong one among all of them in 5 % of studies
    at most. Source: Holm, Scandinavian Journal of Statistics 6(2), 1979.
    """
    corrected, least = {}, 0.0
    for rank, name in enumerate(sorted(chances, key=lambda name: chances[name])):
        least = max(least, min(1.0, (len(chances) - rank) * chances[name]))
        corrected[name] = least
    return corrected


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part of a mean's variance, and the degrees of freedom that it is known by."""

    variance: float
    freedom: float


def _half_width(parts: Sequence[_Part], level: float) -> float:
    return math.sqrt(
        sum(special.stdtrit(p.freedom, 1 - level / 2) ** 2 * p.variance for p in parts)
    )


def _chance(mean: float, half: "functools.partial[float]") -> float:
    """Returns the level at which an interval just reaches 0."""
    if half(LEVEL) == 0:
        return float(mean == 0)
    least = 1e-12
    if abs(mean) >= half(least):
        return least
    return optimize.root_scalar(lambda level: half(level) - abs(mean), bracket=(least, 1.0)).root


def _seeds_part(means: Float[np.ndarray, "K U"], trainings: Sequence[str]) -> _Part:
    """Returns the variance of the mean of all, from how the draws of each training spread."""
    num, draws = means.shape
    variances = []
    for name in dict.fromkeys(trainings):
        share = means[[t == name for t in trainings]].sum(axis=0) / num
        variances.append(float(share.var(ddof=1)) / draws)
    total = math.fsum(variances)
    squares = math.fsum(v * v for v in variances)
    # At least as many as one training has; rounding must not take that away.
    freedom = (draws - 1) * max(1.0, total**2 / squares if squares else 1.0)
    return _Part(total, freedom)


def _items_part(rows: Sequence[Paired], draw: Float[np.ndarray, "U S"]) -> _Part | None:
    """Returns the items' part of the variance; None where no row has items."""
    known = [row for row in rows if row.sources]
    if not known:
        return None
    place: dict[str, int] = {}
    for row in known:
        for source in row.sources:
            place.setdefault(source, len(place))
    pulls = np.zeros((len(draw), len(place)))  # How far a source pulls the mean of all, by draw.
    for row in known:
        sums, num_items = draw @ row.sums, row.counts.sum()
        off = sums - row.counts * (sums.sum(axis=1, keepdims=True) / num_items)
        pulls[:, [place[source] for source in row.sources]] += off / num_items / len(rows)
    draws, num = pulls.shape
    pull = pulls.mean(axis=0)
    variance = float((pull**2).sum())
    if draws > 1:  # What is of seed and source together is in the seeds' part already.
        variance -= float(((pulls - pull) ** 2).sum()) / (draws * (draws - 1))
    return _Part(max(variance, 0.0) * num / (num - 1), num - 1)
