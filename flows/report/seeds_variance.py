"""What other seeds add to the variance of a mean, learned over all trainings of a table.

Three seeds are two degrees of freedom, and Student's t with two is 2.2 times as wide as a normal
variable, 7 times at the level that a table of 27 benchmarks asks for. But a seed's mean is also a
mean of single answers, whose variance many items show, and trainings are alike:

    ratio = variance of the seeds' mean / what the answers alone make of it

It is 1 where seeds differ by chance alone, more where they differ otherwise. Of n answers, ratio
less 1 is n times the seeds' variance in units of a single answer's, which is comparable between
benchmarks of any scale and size. Which ratios occur is learned from the other trainings of the
table, and one training more of which nothing is known. (Empirical Bayes; Smyth, Statistical
Applications in Genetics and Molecular Biology 3(1), 2004, has one inverse χ² for all; here it is a
mixture, so that one noisy training keeps its own.)
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy import special

from flows.report.spread import LEVEL, NO_VARIANCE
from flows.report.variance import Variance

PRIOR_SCALE = 3.0
"""Half of the trainings of which nothing is known have a root of (ratio - 1) up to this.

Intervals of one benchmark with noisy seeds held in 80 to 91 % of simulated studies at 1 and 2, in
92 to 94 % at 3; at 10 they are 1.3 to 1.5 times as wide.
"""

PRIOR_SEEDS = 0.1
"""Half of them have seeds with a deviation up to this, in a single answer's, where that is more.

It is 4 points where answers are right or wrong. Of one benchmark with 20,000 answers, whose two
seeds have a deviation of 3, intervals held in 86 % of simulated studies without it, in 97 with it.
"""

PRIOR_CHANCE = 0.15
"""Share of trainings of which nothing is known whose seeds differ by chance alone.

With 0.02, intervals of one benchmark with three seeds were up to 1.4 times as wide as with known
degrees of freedom, with 0.3 they held in 92 % where seeds differ most.
"""

PRIOR_FLAT = 0.7
"""Share of trainings without items that may have any ratio, each magnitude alike.

Without items a ratio compares with other trainings alone, and says less. With 0, means over 27
trainings of two seeds held in 83 % of simulated studies with one very noisy training, with 0.7 in
90 %; with 1 they were many times too wide where all trainings are alike.
"""

_DEVIATION = 0.4
"""Standard deviation of the logarithm of a ratio in each of the mixture's middle parts."""

_NUM_MIDDLES = 48

_LARGEST_RATIO = 1e6
"""Ratio from which on answers tell nothing of the seeds' variance."""

_NUM_STEPS = 100
"""Number of steps of expectation and maximization."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedSpread:
    """Variance of a training's mean over its seeds, or draws, as they show it.

    Attributes:
      training: name of the training; None for pretrainings, which are like no training.
      variance: the variance of the mean.
      freedom: its degrees of freedom.
      answers: what single answers alone make of it; None if the items are unknown.
      answers_freedom: degrees of freedom of that.
      num_answers: number of single answers under each seed.
    """

    training: str | None
    variance: float
    freedom: float
    answers: float | None = None
    answers_freedom: float = 0.0
    num_answers: int = 1


def with_typical_answers(spreads: Sequence[SeedSpread]) -> Sequence[SeedSpread]:
    """Returns the spreads of several trainings' shares in one mean, where no items are known.

    The trainings still show together how much seeds differ: the prior's median ratio is taken to
    belong to their median variance.
    """
    unlike = any(s.training is None or s.answers is not None for s in spreads)
    if len(spreads) < 2 or unlike:
        return spreads
    middle = float(np.median([spread.variance for spread in spreads])) / (1 + PRIOR_SCALE**2)
    return [
        dataclasses.replace(spread, answers=middle, answers_freedom=np.inf) for spread in spreads
    ]


def seeds_variances(spreads: Sequence[SeedSpread]) -> list[Variance]:
    """Returns the variance of each mean over seeds, moderated over the trainings of all."""
    own = [Variance.estimated(spread.variance, spread.freedom) for spread in spreads]
    known, ratios, fits, parts = _fitted_ratios(spreads)
    if not known:
        return own
    has_items = not np.isinf(spreads[known[0]].answers_freedom)
    priors = _ratio_priors(
        fits,
        [str(spreads[place].training) for place in known],
        parts,
        _WITH_ITEMS if has_items else _WITHOUT_ITEMS,
    )
    for place, of, fit, prior in zip(known, ratios, fits, priors, strict=True):
        own[place] = _posterior_seed_variance(spreads[place], of, fit, prior)
    return own


def find_outliers(spreads: Sequence[SeedSpread]) -> list[bool]:
    """Returns whether the seeds of each training, with items, differ far more than the others'.

    All others are taken to have one variance of their seeds, in units of a single answer's. A
    training is an outlier if one like them would have squares as large as its own, or larger, with
    a chance of at most 5 % over the number of trainings.

    Source: Cochran, Annals of Eugenics 11, 1941 (ISO 5725-2), for the test of one variance;
    Marshall and Spiegelhalter, Bayesian Analysis 2(2), 2007, for a prediction from the others.
    """
    outliers = [False] * len(spreads)
    known, ratios, fits, parts = _fitted_ratios(spreads)
    names, of_rows = np.unique([str(spreads[p].training) for p in known], return_inverse=True)
    if len(names) < 2:
        return outliers
    shown = np.array([fits[of_rows == number].mean(axis=0) for number in range(len(names))])
    # The others' likelihoods make one distribution of their ratio, which predicts these squares.
    others = shown.sum(axis=0) - shown
    chances = _WITH_ITEMS @ parts * np.exp(others - others.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    for place, of, chance in zip(known, ratios, chances[of_rows], strict=True):
        spread = spreads[place]
        assert spread.answers
        scaled = spread.variance / spread.answers / of
        beyond = special.fdtrc(spread.freedom, spread.answers_freedom, scaled) @ chance
        outliers[place] = bool(beyond <= LEVEL / len(names))
    return outliers


def _fitted_ratios(
    spreads: Sequence[SeedSpread],
) -> tuple[list[int], Float[np.ndarray, "T R"], Float[np.ndarray, "T R"], Float[np.ndarray, "M R"]]:
    """Returns the places of trainings whose ratio tells something, ratios, fits and the mixture.

    Column by column the ratios are of the same seeds' variance of a single answer's; the mixture is
    that of a typical number of answers. A fit is the logarithm of a ratio's likelihood.
    """
    # Where single answers hardly differ, the seeds' squares are all that is known.
    known = [
        place
        for place, spread in enumerate(spreads)
        if (spread.answers or 0.0) > NO_VARIANCE
        and spread.variance < _LARGEST_RATIO * (spread.answers or 0.0)
    ]
    counts = np.array([spreads[place].num_answers for place in known])
    typical = math.exp(np.log(counts).mean()) if known else 1.0
    of_typical, parts = _ratio_mixture(round(max(PRIOR_SCALE, PRIOR_SEEDS * math.sqrt(typical)), 1))
    ratios = 1 + np.multiply.outer(counts / typical, of_typical - 1)
    fits = np.array([_log_likelihood(spreads[p], of) for p, of in zip(known, ratios, strict=True)])
    return known, ratios, fits, parts


@functools.cache
def _ratio_mixture(scale: float) -> tuple[Float[np.ndarray, " R"], Float[np.ndarray, "M R"]]:
    """Returns the ratios, and the chance of each in each part of the mixture.

    Args:
      scale: half of the trainings of which nothing is known have a root of (ratio - 1) up to this.
    """
    # Where nothing is known, each quantile of the half-Cauchy distribution is as good as another:
    # the ratios lie at such quantiles, denser at both ends, and so do the middles of the parts.
    #
    #   first part   a ratio of 1, seeds that differ by chance alone
    #   then         around their middles
    #   last part    each magnitude of the ratio alike
    ratios = 1 + (scale * np.tan(np.pi / 2 * special.ndtr(np.linspace(-2.5, 4.0, 66)))) ** 2
    quantiles = (np.arange(_NUM_MIDDLES) + 0.5) / _NUM_MIDDLES
    middles = np.log1p((scale * np.tan(np.pi / 2 * quantiles)) ** 2)
    widths, off = np.gradient(np.log(ratios)), np.log(ratios) - middles[:, None]
    bumps = np.exp(-((off / _DEVIATION) ** 2) / 2) * widths
    parts = np.concatenate([np.eye(1, len(ratios)), bumps, widths[None]])
    return ratios, parts / parts.sum(axis=1, keepdims=True)


_WITH_ITEMS = np.array([PRIOR_CHANCE, *[(1 - PRIOR_CHANCE) / _NUM_MIDDLES] * _NUM_MIDDLES, 0.0])
_WITHOUT_ITEMS = np.array(
    [*[(1 - PRIOR_FLAT) / (_NUM_MIDDLES + 1)] * (_NUM_MIDDLES + 1), PRIOR_FLAT]
)


def _answers_given_ratio(
    spread: SeedSpread, ratios: Float[np.ndarray, " R"]
) -> Float[np.ndarray, " R"]:
    """Returns, for each ratio, the answers' variance that both squares together estimate."""
    # Both estimate it: the answers' squares, and the seeds' divided by the ratio.
    assert spread.answers
    of_seeds = spread.freedom * spread.variance / ratios
    if np.isinf(spread.answers_freedom):
        return np.full_like(ratios, spread.answers)
    total = of_seeds + spread.answers_freedom * spread.answers
    return total / (spread.freedom + spread.answers_freedom)


def _log_likelihood(spread: SeedSpread, ratios: Float[np.ndarray, " R"]) -> Float[np.ndarray, " R"]:
    """Returns the logarithm of how likely the seeds' squares are, for each ratio."""
    # The answers' own variance is integrated out, with equal weight for its every magnitude:
    #
    #   ratio^(-f/2) (f F / ratio + g)^(-(f + g)/2)       F  seeds' over answers' variance
    #   ratio^(-f/2) exp(-f F / ratio / 2)                of answers that are known, g = ∞
    assert spread.answers
    freedom, others = spread.freedom, spread.answers_freedom
    scaled = freedom * spread.variance / spread.answers / ratios
    if np.isinf(others):
        return -(freedom * np.log(ratios) + scaled) / 2
    return -(freedom * np.log(ratios) + (freedom + others) * np.log1p(scaled / others)) / 2


def _ratio_priors(
    fits: Float[np.ndarray, "T R"],
    trainings: Sequence[str],
    parts: Float[np.ndarray, "M R"],
    vague: Float[np.ndarray, " M"],
) -> Float[np.ndarray, "T R"]:
    """Returns the chances of the ratios of each training, as the other trainings show them.

    Args:
      fits: logarithm of the likelihood of each ratio.
      trainings: name of the training of each; those of one name count as one.
      parts: the mixture's parts, as chances of the ratios.
      vague: weights of the mixture's parts for a training of which nothing is known.
    """
    # likely[t, m]: likelihood of training t if its ratio is of part m.
    names, numbers = np.unique(np.array(trainings), return_inverse=True)
    shown = np.array([fits[numbers == number].mean(axis=0) for number in range(len(names))])
    likely = np.exp(shown - shown.max(axis=1, keepdims=True)) @ parts.T
    # Expectation and maximization, of all but one training, for each that is left out:
    #
    #   weights[left out, m]  ->  shares[left out, t, m] = weights likely / their sum over m
    #                         ->  weights, the mean of the shares of all t but one
    others = 1.0 - np.eye(len(names))
    weights = np.tile(vague, (len(names), 1))
    for _ in range(_NUM_STEPS):
        shares = weights * ((others / (weights @ likely.T)) @ likely)
        weights = (shares + vague) / len(names)
    return (weights @ parts)[numbers]


def _posterior_seed_variance(
    spread: SeedSpread,
    ratios: Float[np.ndarray, " R"],
    fit: Float[np.ndarray, " R"],
    prior: Float[np.ndarray, " R"],
) -> Variance:
    """Returns the variance of the seeds' mean: ratio times the answers' variance."""
    chances = prior * np.exp(fit - fit.max())
    chances /= chances.sum()
    likely = chances > 1e-9
    middle = ratios[likely] * _answers_given_ratio(spread, ratios)[likely]
    freedom = spread.freedom + spread.answers_freedom
    if np.isinf(freedom):
        return Variance(middle, chances[likely] / chances[likely].sum())
    return Variance.estimated_among(middle, chances[likely], freedom)
