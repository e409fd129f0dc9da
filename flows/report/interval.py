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
from jaxtyping import Float
from scipy import optimize, special, stats

from flows.report.items import Items
from flows.report.spread import LEVEL


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paired:
    """One benchmark's scores, or differences between two methods' scores, by seed.

    Attributes:
      values: one per seed.
      items: per seed, source -> the items' scores or differences; empty where they are unknown.
      training: names the training; rows of the same one share their checkpoints.
    """

    values: tuple[float, ...]
    items: tuple[Items, ...] = ()
    training: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """Source -> its items; empty unless all seeds have the same, of two sources or more."""
        shapes = [{source: len(found) for source, found in run.items()} for run in self.items]
        known = bool(shapes) and len(shapes[0]) > 1 and all(s == shapes[0] for s in shapes)
        return shapes[0] if known else {}

    def minus(self, other: "Paired") -> "Paired":
        """Returns the differences to another method, with the same seeds and on the same items."""
        values = tuple(a - b for a, b in zip(self.values, other.values, strict=True))
        items: tuple[Items, ...] = ()
        if self.counts and self.counts == other.counts:
            items = tuple(map(_item_differences, self.items, other.items))
        return Paired(values=values, items=items, training=self.training)


def _item_differences(run: Items, other: Items) -> Items:
    return {
        source: tuple(a - b for a, b in zip(found, other[source], strict=True))
        for source, found in run.items()
    }


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
    (Multi-Bootstrap, arXiv:2106.16163, sec. 3.3). A source that several benchmarks ask about is
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

    Only of one seed, and of items that are right or wrong; None elsewhere. Items of one source
    count as independent.

    Source: McNemar, Psychometrika 12(2), 1947; the exact form is the sign test's.
    """
    found = [d for run in row.items for scores in run.values() for d in scores]
    if len(row.values) != 1 or not found or not {*found} <= {-100.0, 0.0, 100.0}:
        return None
    won, lost = found.count(100.0), found.count(-100.0)
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
    """Returns what the sources' consistent differences add; None where no row has items."""
    known = [row for row in rows if row.counts]
    if not known:
        return None
    place: dict[str, int] = {}
    for row in known:
        for source in row.counts:
            place.setdefault(source, len(place))
    pulls = np.zeros((len(draw), len(place)))  # How far a source pulls the mean of all, by draw.
    for row in known:
        counts = np.array([*row.counts.values()])
        sums = draw @ np.array([[math.fsum(run[s]) for s in row.counts] for run in row.items])
        off = sums - counts * (sums.sum(axis=1, keepdims=True) / counts.sum())
        pulls[:, [place[s] for s in row.counts]] += off / counts.sum() / len(rows)
    draws, num = pulls.shape
    pull = pulls.mean(axis=0)
    variance = float((pull**2).sum())
    if draws > 1:  # What is of seed and source together is in the seeds' part already.
        variance -= float(((pulls - pull) ** 2).sum()) / (draws * (draws - 1))
    return _Part(max(variance, 0.0) * num / (num - 1), num - 1)
