"""Variances of means over few or unequal draws, with their degrees of freedom."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int


@dataclasses.dataclass(frozen=True)
class VariancePart:
    """An independent part of a mean's variance, and its degrees of freedom."""

    variance: float
    freedom: float


def satterthwaite(parts: Sequence[VariancePart]) -> VariancePart:
    """Returns the sum of some parts, with degrees of freedom.

    Satterthwaite's are (sum v)^2 / (sum v^2 / f). A part of one or two degrees of freedom that
    dominates, but was estimated too low by chance, makes them too many; so each part in turn is
    taken 1 + 3 / f^1.5 times as large, and the fewest degrees of freedom count.

    Source: Satterthwaite, Biometrics Bulletin 2(6), 1946. The factor is ours: without it, intervals
    of three seeds held in 92 % of simulated studies in which the seeds' part was 80 to 95 %, and
    those of two seeds in 88 % where one of 27 trainings was very noisy. With 1 + 2 / f the latter
    are 91 %; a larger factor makes the intervals of many equal trainings wider.
    """
    variances = np.array([part.variance for part in parts])
    freedoms = np.array([part.freedom for part in parts], dtype=np.float64)
    total = float(variances.sum())
    if not total:
        return VariancePart(0.0, float(freedoms.max()))
    # In units of the whole, so that nothing underflows.
    shares, factors = variances / total, 1 + 3 / freedoms**1.5
    sums = 1 + (factors - 1) * shares
    squares = (shares**2 / freedoms).sum() + (factors**2 - 1) * shares**2 / freedoms
    return VariancePart(total, float((sums**2 / squares).min()))


def mean_over_clusters(
    means: Float[np.ndarray, " C"], counts: Int[np.ndarray, " C"], rest: float
) -> VariancePart:
    """Returns the variance of a mean over values in clusters of different size.

    The clusters are exchangeable: effects of one variance, whatever their size, and within them
    values of one variance:

        value = mean + effect of its cluster + rest        variance of a cluster's mean: t + r / n

    A cluster that has half of the values shows its effect once, but how much effects vary is known
    from all clusters. (The sandwich estimator CR2 takes each cluster's variance from its own one
    residual: with Bell and McCaffrey's degrees of freedom its intervals are 1.6 to 4 times as wide
    in such shapes, and hold in 99 % of simulated studies.)

    Source: Paule and Mandel, Journal of Research of the NBS 87(5), 1982, for t.

    Args:
      means: mean of each of two or more clusters.
      counts: number of values of each.
      rest: sum of squares of the values' deviations from their clusters' means.
    """
    weights = cluster_weights(means, counts, rest)
    variance = clustered_variance(means, counts, rest, weights)
    within = rest / (counts.sum() - len(counts)) if rest else 0.0
    return VariancePart(max(variance, within / counts.sum()), len(counts) - 1)


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
