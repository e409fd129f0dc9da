"""What other seeds add to the variance of a mean, learned over all trainings of a table.

Three seeds are two degrees of freedom, and Student's t with two is 2.2 times as wide as a normal
variable, 7 times at the level that a table of 27 benchmarks asks for. But a seed's mean is also a
mean of single answers, whose variance many items show, and trainings are alike:

    ratio = variance of the seeds' mean / what the answers alone make of it

It is 1 where seeds differ by chance alone, more where they differ otherwise. Of n answers, ratio
less 1 is n times the seeds' variance in units of a single answer's, which is comparable between
benchmarks of any scale and size. Which ratios occur is learned from the other trainings of the
table, and one training more of which nothing is known. (Empirical Bayes; Smyth, Statistical
Applications in Genetics and Molecular Biology 3(1), 2004, has one inverse χ² for all. Here it may
be any distribution, found by maximum likelihood, Laird, JASA 73, 1978, so that one noisy training
keeps its own.)
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy import special

from flows.report.spread import LEVEL, NO_VARIANCE
from flows.report.variance import Variance

PRIOR_SEEDS = 0.2
"""Half of the trainings of which nothing is known have seeds with a deviation up to this.

It is in units of a single answer's: 8 points where half of right or wrong answers are right. It
matters in tables of few benchmarks. Of one with 150 answers and two seeds of 0.3, intervals held in
92 % of simulated studies at 0.15, in 95 at 0.2; of two with 1,000 whose seeds differ by chance
alone, they are 1.5 times as wide as with known degrees of freedom.
"""

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


def pool_without_items(spreads: Sequence[SeedSpread]) -> Sequence[SeedSpread]:
    """Returns the spreads of several trainings' shares in one mean, as one if no items are known.

    Source: Satterthwaite, Biometrics Bulletin 2(6), 1946, for the degrees of freedom of the sum.
    """
    total = sum(spread.variance for spread in spreads)
    if not total or any(spread.answers is not None for spread in spreads):
        return spreads
    freedom = total**2 / sum(spread.variance**2 / spread.freedom for spread in spreads)
    return [SeedSpread(training=None, variance=total, freedom=freedom)]


def seeds_variances(spreads: Sequence[SeedSpread]) -> list[Variance]:
    """Returns the variance of each mean over seeds, moderated over the trainings of all."""
    own = [Variance.estimated(spread.variance, spread.freedom) for spread in spreads]
    known, ratios, fits, vague = _fitted_ratios(spreads)
    if not known:
        return own
    priors = _ratio_priors(fits, [str(spreads[place].training) for place in known], vague)
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
    known, ratios, fits, vague = _fitted_ratios(spreads)
    names, of_rows = np.unique([str(spreads[p].training) for p in known], return_inverse=True)
    if len(names) < 2:
        return outliers
    shown = np.array([fits[of_rows == number].mean(axis=0) for number in range(len(names))])
    # The others' likelihoods make one distribution of their ratio, which predicts these squares.
    others = shown.sum(axis=0) - shown
    chances = vague * np.exp(others - others.max(axis=1, keepdims=True))
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
) -> tuple[list[int], Float[np.ndarray, "T R"], Float[np.ndarray, "T R"], Float[np.ndarray, " R"]]:
    """Returns the places of trainings whose ratio tells something, ratios, fits and chances.

    Column by column the ratios are of the same seeds' variance of a single answer's. A fit is the
    logarithm of a ratio's likelihood, a chance that of a training of which nothing is known.
    """
    # Where single answers hardly differ, the seeds' squares are all that is known.
    known = [
        place
        for place, spread in enumerate(spreads)
        if (spread.answers or 0.0) > NO_VARIANCE
        and spread.variance < _LARGEST_RATIO * (spread.answers or 0.0)
    ]
    counts = np.array([spreads[place].num_answers for place in known])
    # The root of (ratio - 1) is half-Cauchy (Gelman, Bayesian Analysis 1(3), 2006, for deviations
    # of few groups), at quantiles that are denser at both ends.
    deviates = np.linspace(-2.5, 4.0, 66)
    roots = PRIOR_SEEDS * np.tan(np.pi / 2 * special.ndtr(deviates))
    ratios = 1 + np.multiply.outer(counts, roots**2)
    vague = np.exp(-(deviates**2) / 2)
    fits = np.array([_log_likelihood(spreads[p], of) for p, of in zip(known, ratios, strict=True)])
    return known, ratios, fits, vague / vague.sum()


def _answers_given_ratio(
    spread: SeedSpread, ratios: Float[np.ndarray, " R"]
) -> Float[np.ndarray, " R"]:
    """Returns, for each ratio, the answers' variance that both squares together estimate."""
    # Both estimate it: the answers' squares, and the seeds' divided by the ratio.
    assert spread.answers
    of_seeds = spread.freedom * spread.variance / ratios
    total = of_seeds + spread.answers_freedom * spread.answers
    return total / (spread.freedom + spread.answers_freedom)


def _log_likelihood(spread: SeedSpread, ratios: Float[np.ndarray, " R"]) -> Float[np.ndarray, " R"]:
    """Returns the logarithm of how likely the seeds' squares are, for each ratio."""
    # The answers' own variance is integrated out, with equal weight for its every magnitude:
    #
    #   ratio^(-f/2) (f F / ratio + g)^(-(f + g)/2)       F  seeds' over answers' variance
    assert spread.answers
    freedom, others = spread.freedom, spread.answers_freedom
    scaled = freedom * spread.variance / spread.answers / ratios
    return -(freedom * np.log(ratios) + (freedom + others) * np.log1p(scaled / others)) / 2


def _ratio_priors(
    fits: Float[np.ndarray, "T R"],
    trainings: Sequence[str],
    vague: Float[np.ndarray, " R"],
) -> Float[np.ndarray, "T R"]:
    """Returns the chances of the ratios of each training, as the other trainings show them.

    Args:
      fits: logarithm of the likelihood of each ratio.
      trainings: name of the training of each; those of one name count as one.
      vague: chances of the ratios of a training of which nothing is known.
    """
    # likely[t, r]: likelihood of ratio r for training t.
    names, numbers = np.unique(np.array(trainings), return_inverse=True)
    shown = np.array([fits[numbers == number].mean(axis=0) for number in range(len(names))])
    likely = np.exp(shown - shown.max(axis=1, keepdims=True))
    # Expectation and maximization, of all but one training, for each that is left out:
    #
    #   chances[left out, r]  ->  shares[left out, t, r] = chances likely / their sum over r
    #                         ->  chances, the mean of the shares of all t but one, and of `vague`
    others = 1.0 - np.eye(len(names))
    chances = np.tile(vague, (len(names), 1))
    for _ in range(_NUM_STEPS):
        shares = chances * ((others / (chances @ likely.T)) @ likely)
        chances = (shares + vague) / len(names)
    return chances[numbers]


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
    return Variance.estimated_among(middle, chances[likely], freedom)
