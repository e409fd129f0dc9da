"""The 95 % interval and p-value of a mean, from a model of seeds and items.

A score, or the difference of two, is a mean over seeds and over items. Both are random draws, and
other draws would give another mean:

    score[seed, item] = mean + effect of the seed + effect of the item's source + interaction + rest

The variance of the mean is a sum of parts, each with its own degrees of freedom:

    seeds      for each training, the variance of its seeds' means, divided by the number of seeds.
               It holds the effect of the seed and the interaction
    sources    for each benchmark, what its sources add: the variance due to their means over the
               seeds, less the interaction in it, which the seeds' part already counts

The interval is Student's, with Satterthwaite's degrees of freedom for the sum. A score that stays
within 0-100 gets a binomial interval of the same variance instead, which stays there, too. How
often these intervals hold is simulated in tests/flows/report.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy import optimize, special, stats

from flows.report.items import Items
from flows.report.spread import LEVEL
from flows.report.variance import (
    VariancePart,
    cluster_weights,
    clustered_variance,
    mean_over_clusters,
    satterthwaite,
)

SCALE = 100.0
"""Upper end of the scale of scores; the lower one is 0."""

PRIOR_ANSWERS = 0.5
"""Wrong answers that are added to the right or wrong ones before their variance is estimated.

Twenty right answers of twenty have no spread, but their score is not certain.
"""

PRIOR_CORRELATION = 0.25
"""Correlation of answers about one source, of several seeds or items, while there is no spread."""

_NO_VARIANCE = 1e-20
"""Variance up to which values are the same, but for their rounding."""

PRIOR_SEEDS = 8.0
"""Weight of the seeds' variance due to single answers alone, over the number of wrong answers.

A few wrong answers in all cannot show that seeds differ by more than chance: their variance is then
taken from the single answers instead of from two or three means. 5 to 10 kept the promise with and
without differences between seeds.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PairedScores:
    """One benchmark's scores, or differences between two methods' scores, by seed.

    Attributes:
      values: score or difference of each seed.
      sources: pictures or videos that the items are about, sorted; empty if the items are unknown.
      counts: number of items of each source.
      items: the items' scores or differences by seed, source after source.
      training: name of the training; benchmarks with the same training share their checkpoints.
      low: least value that is possible; -inf for none.
      high: largest value that is possible; inf for none.
      is_binary: whether every answer is right or wrong.
    """

    values: Float[np.ndarray, " S"]
    sources: tuple[str, ...] = ()
    counts: Int[np.ndarray, " C"] = dataclasses.field(default_factory=lambda: np.zeros(0, int))
    items: Float[np.ndarray, "S N"] = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    training: str = ""
    low: float = -math.inf
    high: float = math.inf
    is_binary: bool = False

    @classmethod
    def of(
        cls,
        values: Sequence[float],
        runs: Sequence[Items] = (),
        training: str = "",
        *,
        is_percentage: bool = False,
    ) -> "PairedScores":
        """Returns the scores of the seeds, with their items.

        Args:
          values: score of each seed.
          runs: items of each seed. They are dropped unless there are two sources or more, and all
            seeds have the same sources with the same number of items.
          training: name of the training.
          is_percentage: whether the metric cannot leave 0-100. It is not believed of scores that
            do.
        """
        # Two seeds, and three items about two pictures:
        #
        #   values    [66.7, 100]              one score per seed
        #   sources   ("a.jpg", "b.jpg")
        #   counts    [2, 1]                   items per source
        #   items     [[100, 0, 100],          seed by seed: of a.jpg one is right, b.jpg is right
        #              [100, 100, 100]]        all are right
        scores = np.array(values, dtype=np.float64)
        shapes = [{source: len(of_source) for source, of_source in run.items()} for run in runs]
        paired = cls(values=scores, training=training)
        if shapes and len(shapes[0]) >= 2 and all(shape == shapes[0] for shape in shapes):
            sources = tuple(sorted(shapes[0]))
            items = np.array([[x for source in sources for x in run[source]] for run in runs])
            paired = dataclasses.replace(
                paired,
                sources=sources,
                counts=np.array([shapes[0][source] for source in sources]),
                items=items,
                is_binary=bool(np.isin(items, (0.0, SCALE)).all()),
            )
        within = bool(((scores >= 0) & (scores <= SCALE)).all())
        if paired.is_binary or (is_percentage and within):
            paired = dataclasses.replace(paired, low=0.0, high=SCALE)
        return paired

    def of_seeds(self, places: Sequence[int]) -> "PairedScores":
        """Returns the scores of the seeds at the given places."""
        items = self.items[list(places)] if self.sources else self.items
        return dataclasses.replace(self, values=self.values[list(places)], items=items)

    def minus(self, other: "PairedScores") -> "PairedScores":
        """Returns the differences to another method with the same seeds.

        The items are dropped if the two methods have different ones.
        """
        # Subtracted seed by seed and item by item. What makes a picture hard, or a seed lucky, for
        # both methods is then gone, which is why the interval of a difference can be narrow.
        low, high = self.low - other.high, self.high - other.low
        values = self.values - other.values
        if self.sources != other.sources or not np.array_equal(self.counts, other.counts):
            return PairedScores(values=values, training=self.training, low=low, high=high)
        return dataclasses.replace(
            self,
            values=values,
            items=self.items - other.items,
            low=low,
            high=high,
            is_binary=self.is_binary and other.is_binary,
        )

    @staticmethod
    def mean_of(rows: Sequence["PairedScores"]) -> "PairedScores":
        """Returns the mean of some scores of the same seeds, such as those of several budgets.

        The items are dropped if they differ.
        """
        if len(rows) == 1:
            return rows[0]
        first = rows[0]
        mean = dataclasses.replace(
            first, values=np.mean([row.values for row in rows], axis=0), is_binary=False
        )
        if any(
            row.sources != first.sources or not np.array_equal(row.counts, first.counts)
            for row in rows
        ):
            none = PairedScores(values=mean.values)
            return dataclasses.replace(
                mean, sources=none.sources, counts=none.counts, items=none.items
            )
        return dataclasses.replace(mean, items=np.mean([row.items for row in rows], axis=0))

    @property
    def num_seeds(self) -> int:
        """Number of seeds."""
        return len(self.values)

    @property
    def num_effective_sources(self) -> float:
        """Number of sources of equal size that would average as well as these."""
        return float(self.counts.sum()) ** 2 / float((self.counts.astype(float) ** 2).sum())


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
    """

    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    over: str = ""
    seeds: int = 0
    pretrainings: int = 1
    items: int = 0


def estimate_interval(
    rows: Sequence[PairedScores], pretrainings: Sequence[int], *, level: float = LEVEL
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
    """
    values = np.array([row.values for row in rows])
    mean = float(values.mean())
    # A draw is what other draws are independent of: a seed, or with several pretrainings each of
    # those. `clusters` has the draw of each seed.
    _, clusters = np.unique(np.asarray(pretrainings), return_inverse=True)
    num_pretrainings = int(clusters.max()) + 1
    if num_pretrainings == 1:
        clusters = np.arange(len(clusters))
    sources, interaction = _sources_parts(rows, clusters)
    seeds = _seeds_parts(rows, values, clusters, together=num_pretrainings > 1)
    facts = {
        "mean": mean,
        "seeds": len(clusters),
        "pretrainings": num_pretrainings,
        "items": sum(int(row.counts.sum()) for row in rows),
    }
    if not sources and not seeds:
        return ScoreInterval(**facts)
    over = " and ".join(["seeds"] * bool(seeds) + ["items"] * bool(sources))
    single = rows[0] if len(rows) == 1 else None
    spread = _sum_of_parts(seeds, sources, rows, interaction)
    if not sources and spread.variance < _NO_VARIANCE:
        return ScoreInterval(**facts)
    p = _chance_of_zero(mean, spread)
    if (
        single is not None
        and (single.low, single.high) == (0.0, SCALE)
        and (spread.variance > 0 or single.is_binary)
    ):
        low, high = _percentage_interval(mean, spread, single, level)
        return ScoreInterval(**facts, low=low, high=high, p=p, over=over)
    half = _quantile(spread.freedom, level) * math.sqrt(spread.variance)
    least = float(np.mean([row.low for row in rows]))
    most = float(np.mean([row.high for row in rows]))
    low, high = max(mean - half, least), min(mean + half, most)
    # With one benchmark, one seed, and items that are right or wrong, there is an exact test.
    # Neither calls a difference that the other does not.
    exact = mcnemar_test(single) if single is not None else None
    if exact is not None and exact > p:
        p = exact
        if p > level:
            low, high = min(low, 0.0), max(high, 0.0)
    return ScoreInterval(**facts, low=low, high=high, p=p, over=over)


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


def _sum_of_parts(
    seeds: Sequence[VariancePart],
    sources: Sequence[VariancePart],
    rows: Sequence[PairedScores],
    interaction: float,
) -> VariancePart:
    """Returns the variance of the mean over benchmarks."""
    if sources and len(rows) == 1 and rows[0].is_binary:
        seeds = _mixed_seeds(seeds, rows[0], interaction)
    spread = satterthwaite([*seeds, *sources])
    # Two methods that answer alike are not known to be alike: as if one answer differed, of each
    # benchmark.
    differences = [row for row in rows if row.low < 0 and row.is_binary and row.sources]
    least = sum((SCALE / _num_prior_answers(row)) ** 2 for row in differences) / len(rows) ** 2
    if spread.variance < least:
        return VariancePart(least, min(part.freedom for part in sources))
    return spread


def _mixed_seeds(
    seeds: Sequence[VariancePart], row: PairedScores, interaction: float
) -> Sequence[VariancePart]:
    """Returns the seeds' part of the variance of one benchmark's mean, mixed with a prior one."""
    # Answers that are right or wrong. What tells seeds apart is the rarer kind, or where two
    # methods are compared, the answers in which they differ. If there are few, what they say of the
    # seeds' variance is mixed with what single answers alone would make it.
    others = int(np.count_nonzero(row.items))
    if row.low == 0:
        others = min(others, row.items.size - others)
    if len(seeds) != 1 or interaction <= 0:
        return seeds
    (part,) = seeds
    prior = PRIOR_SEEDS / max(others, PRIOR_ANSWERS)
    freedom = part.freedom + prior
    variance = (part.freedom * part.variance + prior * interaction) / freedom
    return [VariancePart(variance, freedom)]


def _num_prior_answers(row: PairedScores) -> float:
    """Returns how many independent answers the items are worth, where nothing is known of it.

    It is between the number of sources, if all seeds and all items of a source agree, and the
    number of all answers: answers about a source are taken to correlate by `PRIOR_CORRELATION`.
    """
    share = PRIOR_CORRELATION
    return 1 / ((1 - share) / row.items.size + share / row.num_effective_sources)


def _seeds_parts(
    rows: Sequence[PairedScores],
    values: Float[np.ndarray, "K S"],
    clusters: Int[np.ndarray, " S"],
    *,
    together: bool,
) -> list[VariancePart]:
    """Returns the seeds' parts of the variance, one for each independent training."""
    counts = np.bincount(clusters)
    if len(counts) == 1:
        return []
    if together:
        # A pretraining moves all trainings at once: their mean is one value per seed.
        by_seed = values.mean(axis=0)
        means = np.bincount(clusters, by_seed) / counts
        rest = float(((by_seed - means[clusters]) ** 2).sum())
        return [mean_over_clusters(means, counts, rest)]
    parts = []
    for name in dict.fromkeys(row.training for row in rows):
        # The benchmarks of a training move together: first sum, then take the variance.
        share = values[[row.training == name for row in rows]].sum(axis=0) / len(rows)
        parts.append(VariancePart(float(share.var(ddof=1)) / len(share), len(share) - 1))
    return parts


def _sources_parts(
    rows: Sequence[PairedScores], clusters: Int[np.ndarray, " S"]
) -> tuple[list[VariancePart], float]:
    """Returns the sources' parts of the variance, and their interaction with the last one's seeds.

    Benchmarks that ask about the same pictures are one part.
    """
    parts, interaction = [], 0.0
    for group in _linked_rows([row for row in rows if row.sources]):
        if len(group) == 1:
            part, interaction = _source_part(group[0], clusters)
        else:
            part, interaction = _shared_sources_part(group, clusters)
        parts.append(VariancePart(part.variance * (len(group) / len(rows)) ** 2, part.freedom))
    return parts, interaction


def _linked_rows(rows: Sequence[PairedScores]) -> list[list[PairedScores]]:
    """Returns the benchmarks in groups that share no source with each other."""
    groups: list[tuple[set[str], list[PairedScores]]] = []
    for row in rows:
        linked = [group for group in groups if not group[0].isdisjoint(row.sources)]
        groups = [group for group in groups if group not in linked]
        groups.append(
            (
                set(row.sources).union(*(sources for sources, _ in linked)),
                [*(member for _, members in linked for member in members), row],
            )
        )
    return [members for _, members in groups]


def _source_part(row: PairedScores, clusters: Int[np.ndarray, " S"]) -> tuple[VariancePart, float]:
    """Returns the part of one benchmark's sources, and their interaction with the draws."""
    starts = np.concatenate([[0], np.cumsum(row.counts)[:-1]])

    def of_sources(items: Float[np.ndarray, "*B N"]) -> tuple[Float[np.ndarray, "*B C"], float]:
        means = np.add.reduceat(items, starts, axis=-1) / row.counts
        if len(starts) == items.shape[-1]:
            return means, 0.0
        return means, float(((items - np.repeat(means, row.counts, axis=-1)) ** 2).sum())

    mean = row.items.mean(axis=0)
    means, rest = of_sources(mean)
    counts = np.bincount(clusters)
    if len(counts) == 1:
        return mean_over_clusters(means, row.counts, rest), 0.0
    # Each draw's deviations from the mean, source by source, show the interaction; the sum of their
    # squares is estimated like the variance of the mean itself.
    weights = cluster_weights(means, row.counts, rest)
    draws = np.zeros((len(counts), row.items.shape[1]))
    np.add.at(draws, clusters, row.items / counts[clusters][:, None])
    deviations, rests = of_sources(draws - mean)
    squares = clustered_variance(deviations, row.counts, rests, weights)
    interaction = _draws_share(clusters) * squares
    variance = clustered_variance(means, row.counts, rest, weights) - interaction
    return VariancePart(max(variance, 0.0), len(row.counts) - 1), interaction


def _shared_sources_part(
    rows: Sequence[PairedScores], clusters: Int[np.ndarray, " S"]
) -> tuple[VariancePart, float]:
    """Returns the part of benchmarks that share sources, and its interaction with the draws."""
    # Two benchmarks that ask about the same picture share its column.
    place: dict[str, int] = {}
    for row in rows:
        for source in row.sources:
            place.setdefault(source, len(place))
    # How far each source moves the mean over these benchmarks, by seed: the sum of its items'
    # deviations from their benchmark's mean, weighted by their share in that mean.
    pulls = np.zeros((len(clusters), len(place)))
    for row in rows:
        starts = np.concatenate([[0], np.cumsum(row.counts)[:-1]])
        off = row.items - row.items.mean(axis=1, keepdims=True)
        share = np.add.reduceat(off, starts, axis=1) / row.counts.sum() / len(rows)
        pulls[:, [place[source] for source in row.sources]] += share
    num, pull = len(place), pulls.mean(axis=0)
    num_draws = int(clusters.max()) + 1
    draws = np.array([pulls[clusters == draw].mean(axis=0) for draw in range(num_draws)])
    interaction = 0.0
    if num_draws > 1:
        interaction = _draws_share(clusters) * float(((draws - pull) ** 2).sum())
    variance = max(float((pull**2).sum()) - interaction, 0.0)
    return VariancePart(variance * num / (num - 1), num - 1), interaction


def _draws_share(clusters: Int[np.ndarray, " S"]) -> float:
    """Returns the factor from squares over the draws to the variance of their mean."""
    counts = np.bincount(clusters)
    return float(((counts / counts.sum()) ** 2).sum()) / (len(counts) - 1)


def _quantile(freedom: float, level: float) -> float:
    return float(special.stdtrit(freedom, 1 - level / 2))


def _chance_of_zero(mean: float, spread: VariancePart) -> float:
    """Returns the p-value of a mean: the level at which Student's interval just reaches 0."""
    # No spread at all: either the difference is 0, or it is certain.
    if not spread.variance:
        return float(mean == 0)
    return float(2 * special.stdtr(spread.freedom, -abs(mean) / math.sqrt(spread.variance)))


def _percentage_interval(
    mean: float, spread: VariancePart, row: PairedScores, level: float
) -> tuple[float, float]:
    """Returns the interval of a score within 0-100.

    It is the binomial one, of as many independent answers as would give the variance, fewer for
    few degrees of freedom (Korn and Graubard, Survey Methodology 24(2), 1998); and with half the
    chance of the very score, which makes it hold as often as it says on average over the scores
    (mid-P, Lancaster, JASA 56, 1961).
    """
    share, variance = mean / SCALE, spread.variance / SCALE**2
    prior = PRIOR_ANSWERS / row.num_effective_sources if row.is_binary else 0.0
    if row.is_binary:
        variance += prior / _num_prior_answers(row)
    answers = (share * (1 - share) + prior) / variance
    # Single answers of one training have the binomial variance itself, which is not estimated.
    if not (row.is_binary and row.num_seeds == 1 and row.counts.max() == 1):
        answers *= (special.ndtri(1 - level / 2) / _quantile(spread.freedom, level)) ** 2
    low, high = binomial_interval(share, answers, level)
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
