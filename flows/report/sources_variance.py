"""What the pictures and videos that items are about add to the variance of a mean.

All items about one source are one draw. There are two estimates:

    CR2           each source's pull on the mean: its items' deviations, over the number of items,
                  and more where the source has moved the mean towards itself. Nothing is assumed of
                  how effects depend on a source's size. The degrees of freedom are Bell and
                  McCaffrey's
    exchangeable  effects of one variance, whatever the number of items of a source: where so few
                  sources have nearly all items that CR2 has less than `LEAST_FREEDOM` degrees;
                  one that two benchmarks share then moves both to the same side

Source: Bell and McCaffrey, Survey Methodology 28(2), 2002; for the mean, the regression on a
constant.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from flows.report.paired_scores import PairedScores
from flows.report.variance import Variance

LEAST_FREEDOM = 4.0
"""Degrees of freedom below which the sources of a benchmark are taken as exchangeable.

Below it, CR2's degrees of freedom are not to be relied on (Tipton, Psychological Methods 20(3),
2015). At 10, intervals of effects that grow with a source's items held in 80 % of simulated
studies, at 4 in 95 %.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceSpread:
    """Variance of a mean as the sources show it.

    Attributes:
      squares: the variance, as if seeds and items had no interaction.
      freedom: its degrees of freedom.
      interaction: what the interaction of the sources with the draws makes of it; 0 for one draw.
      interaction_freedom: degrees of freedom of that.
    """

    squares: float
    freedom: float
    interaction: float = 0.0
    interaction_freedom: float = 0.0

    @property
    def variance(self) -> Variance:
        """What the sources add beyond the interaction, which the seeds' means have, too."""
        return Variance.estimated(max(self.squares - self.interaction, 0.0), self.freedom)


def source_spread(
    rows: Sequence[PairedScores], clusters: Int[np.ndarray, " S"], num_rows: int
) -> SourceSpread:
    """Returns the spread of the sum over some benchmarks' means, divided by a number.

    Args:
      rows: the benchmarks, with items. Two of them that ask about one picture share it.
      clusters: number of each seed's draw.
      num_rows: number of benchmarks in the mean that these are a part of.
    """
    if any(_source_pulls([row])[1] < LEAST_FREEDOM for row in rows):
        if len(rows) == 1:
            return _exchangeable_spread(rows[0], clusters, num_rows)
        return _linked_spread(rows, clusters, num_rows)
    pulls, freedom = _source_pulls(rows)
    pulls /= num_rows
    mean = pulls.mean(axis=0)
    interaction, num_draws = 0.0, int(clusters.max()) + 1
    if num_draws > 1:
        draws = np.array([pulls[clusters == draw].mean(axis=0) for draw in range(num_draws)])
        interaction = _draws_share(clusters) * float(((draws - mean) ** 2).sum())
    return SourceSpread(
        squares=float((mean**2).sum()),
        freedom=freedom,
        interaction=interaction,
        interaction_freedom=freedom * (num_draws - 1),
    )


def linked_rows(rows: Sequence[PairedScores]) -> list[list[PairedScores]]:
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


def _source_pulls(rows: Sequence[PairedScores]) -> tuple[Float[np.ndarray, "S C"], float]:
    """Returns how far each source moves the sum of the benchmarks' means, and the freedom."""
    # Two benchmarks that ask about the same picture share its column.
    place: dict[str, int] = {}
    for row in rows:
        for source in row.sources:
            place.setdefault(source, len(place))
    pulls = np.zeros((rows[0].num_seeds, len(place)))
    # Bell and McCaffrey: of independent items of one variance in each benchmark, the covariance G
    # of the pulls has the trace that the estimate has in the mean. Its degrees of freedom are
    #
    #   tr(G)² / tr(G²)     G = D - Σ u u'     D  diagonal, the pulls of items about a known mean
    #                                          u  of each benchmark, since its mean is estimated
    diagonal, off = np.zeros(len(place)), np.zeros((len(rows), len(place)))
    for row, u in zip(rows, off, strict=True):
        columns, total = [place[source] for source in row.sources], row.counts.sum()
        factor = 1 / np.sqrt(1 - row.counts / total)
        deviations = row.items - row.items.mean(axis=1, keepdims=True)
        pulls[:, columns] += factor * np.add.reduceat(deviations, row.starts, axis=1) / total
        # Items that are all alike have no variance; alone, any is as good.
        own = float(row.items.mean(axis=0).var()) or float(len(rows) == 1)
        diagonal[columns] += own * factor**2 * row.counts / total**2
        u[columns] = own**0.5 * factor * row.counts / total**1.5
    trace = diagonal.sum() - (off**2).sum()
    squares = (diagonal**2).sum() - 2 * (diagonal * off**2).sum() + ((off @ off.T) ** 2).sum()
    return pulls, float(trace**2 / squares) if squares > 0 else float(len(place) - 1)


def _exchangeable_spread(
    row: PairedScores, clusters: Int[np.ndarray, " S"], num_rows: int
) -> SourceSpread:
    """Returns the spread of one benchmark's mean over sources of one variance."""

    def of_sources(items: Float[np.ndarray, "*B N"]) -> tuple[Float[np.ndarray, "*B C"], float]:
        means = np.add.reduceat(items, row.starts, axis=-1) / row.counts
        return means, float(((items - np.repeat(means, row.counts, axis=-1)) ** 2).sum())

    mean = row.items.mean(axis=0)
    means, rest = of_sources(mean)
    weights = cluster_weights(means, row.counts, rest)
    squares = clustered_variance(means, row.counts, rest, weights)
    freedom, counts = len(row.counts) - 1, np.bincount(clusters)
    if len(counts) == 1:
        squares = max(squares, _rest_variance(row.counts, rest))
        return SourceSpread(squares=squares / num_rows**2, freedom=freedom)
    # Each draw's deviations from the mean, source by source, show the interaction; the sum of their
    # squares is estimated like the variance of the mean itself.
    draws = np.zeros((len(counts), row.items.shape[1]))
    np.add.at(draws, clusters, row.items / counts[clusters][:, None])
    deviations, rests = of_sources(draws - mean)
    of_draws = clustered_variance(deviations, row.counts, rests, weights)
    return SourceSpread(
        squares=squares / num_rows**2,
        freedom=freedom,
        interaction=_draws_share(clusters) * of_draws / num_rows**2,
        interaction_freedom=freedom * (len(counts) - 1),
    )


def _linked_spread(
    rows: Sequence[PairedScores], clusters: Int[np.ndarray, " S"], num_rows: int
) -> SourceSpread:
    """Returns the spread of benchmarks that share sources, each by its own estimate."""
    # A mean has the effect e of each source with a weight w, its share of the items. Two benchmarks
    # whose effects go together on what they share have the covariance
    #
    #     Σ w v sd(e) sd(f) = sd(mean) sd(mean') cos(w, v)      over the shared sources
    #
    # which is the most that it can be; the few sources do not tell how much of that there is.
    own = [source_spread([row], clusters, num_rows) for row in rows]
    weights = [dict(zip(row.sources, row.counts / row.counts.sum(), strict=True)) for row in rows]
    lengths = [math.hypot(*each.values()) for each in weights]
    squares = sum(spread.squares for spread in own)
    for i, j in itertools.combinations(range(len(rows)), 2):
        shared = sum(weights[i][source] * weights[j].get(source, 0.0) for source in weights[i])
        cosine = shared / lengths[i] / lengths[j]
        squares += 2 * math.sqrt(max(own[i].squares, 0.0) * max(own[j].squares, 0.0)) * cosine
    return SourceSpread(
        squares=squares,
        freedom=min(spread.freedom for spread in own),
        interaction=sum(spread.interaction for spread in own),
        interaction_freedom=min(spread.interaction_freedom for spread in own),
    )


def _draws_share(clusters: Int[np.ndarray, " S"]) -> float:
    """Returns the factor from squares over the draws to the variance of their mean."""
    # The squares of D draws of one size are D (D - 1) times the variance of their mean. How much it
    # is for draws with unlike numbers of seeds depends on how alike these answer, which is not
    # known: then nothing is taken off the sources' part.
    counts = np.bincount(clusters)
    num = len(counts)
    return 1 / (num * (num - 1)) if (counts == counts[0]).all() else 0.0


def mean_over_clusters(
    means: Float[np.ndarray, " C"], counts: Int[np.ndarray, " C"], rest: float
) -> float:
    """Returns the variance of a mean over values in clusters of different size.

    The clusters are exchangeable: effects of one variance, whatever their size, and within them
    values of one variance:

        value = mean + effect of its cluster + rest        variance of a cluster's mean: t + r / n

    A cluster that has half of the values shows its effect once, but how much effects vary is known
    from all clusters.

    Source: Paule and Mandel, Journal of Research of the NBS 87(5), 1982, for t.

    Args:
      means: mean of each of two or more clusters.
      counts: number of values of each.
      rest: sum of squares of the values' deviations from their clusters' means.
    """
    weights = cluster_weights(means, counts, rest)
    variance = clustered_variance(means, counts, rest, weights)
    return max(variance, _rest_variance(counts, rest))


def _rest_variance(counts: Int[np.ndarray, " C"], rest: float) -> float:
    """Returns the variance of the mean if clusters have no effects."""
    return float(rest / (counts.sum() - len(counts)) / counts.sum()) if rest else 0.0


def cluster_weights(
    means: Float[np.ndarray, " C"], counts: Int[np.ndarray, " C"], rest: float
) -> Float[np.ndarray, " C"]:
    """Returns weights for clusters' squared deviations: one over the variances of their means."""
    weights = np.ones(len(counts))
    if not rest:
        return weights
    within = rest / (counts.sum() - len(counts))
    # The weights depend on the variance between clusters, which is estimated with the weights.
    for _ in range(8):
        between = max(_between_clusters(means, counts, rest, weights), 0.0)
        weights = 1 / (between + within / counts)
        weights /= weights.max()
    return weights


def _between_clusters(
    means: Float[np.ndarray, "*B C"],
    counts: Int[np.ndarray, " C"],
    rest: float,
    weights: Float[np.ndarray, " C"],
) -> float:
    """Returns the variance of clusters' effects, without bias and so perhaps below 0."""
    # Q = sum g (y - mean of y weighted by g)^2 has the mean a t + b r, for any weights g.
    total = weights.sum()
    deviations = means - (weights * means).sum(axis=-1, keepdims=True) / total
    own = rest / (counts.sum() - len(counts)) if rest else 0.0
    a = total - (weights**2).sum() / total
    b = (weights / counts).sum() - (weights**2 / counts).sum() / total
    return float(((weights * deviations**2).sum() - own * b) / a)


def clustered_variance(
    means: Float[np.ndarray, "*B C"],
    counts: Int[np.ndarray, " C"],
    rest: float,
    weights: Float[np.ndarray, " C"],
) -> float:
    """Returns the variance of the mean over all values, without bias, summed over any rows.

    Args:
      means: mean of each cluster; with a row for each of several sets of values.
      counts: number of values of each cluster.
      rest: sum of squares of the values' deviations from their clusters' means, over all rows.
      weights: weight of each cluster's squared deviation.
    """
    num = counts.sum()
    own = rest / (num - len(counts)) if rest else 0.0
    between = _between_clusters(means, counts, rest, weights)
    return float(between * ((counts / num) ** 2).sum() + own / num)
