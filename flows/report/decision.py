"""A sequential test: decides which of two methods is better, checked after every seed.

    decision = decide(differences)          # [seeds] or [seeds, benchmarks], paired by seed
    while not decision.decided and decision.num_seeds < max_seeds: …one seed more…

An ordinary 95 % interval that is checked after every seed excludes 0 sooner or later, even if the
methods are equally good. The intervals here hold jointly: the chance that any of them, after 1 to
`HORIZON` seeds, misses the truth is at most 5 %.
"""

import dataclasses
import math

import numpy as np
from jaxtyping import Float

SCALE = 8.0
"""Prior variance of the effect, in units of the variance of one difference.

The interval is narrowest for effects of this size. Of the values 1 to 30, those from 4 to 8 needed
the fewest seeds for effects that a study of fixed size would take 6 to 34 seeds for
(`python -m perf.decision`).
"""

HORIZON = 200
"""Largest number of seeds; the error bound covers every check up to it."""

CROSSING = 0.64
"""Upper bound on c times the chance that `decision_bound`'s ratio reaches c within the horizon.

It would be 1 if the ratio ran for ever and met c exactly; instead it stops, and jumps past c. Of
50,000 simulated sweeps without an effect, a share of 0.62 / c reached c, for c of 8 to 12, and a
smaller one for larger c.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """The difference between two methods after `num_seeds` seeds, and whether it is decided.

    Attributes:
      mean: mean difference over these seeds.
      low: lower end of the interval; -inf while there are too few seeds for one.
      high: upper end of the interval; inf likewise.
      num_seeds: number of seeds needed to decide; all seeds given if it is undecided.
    """

    mean: float
    low: float
    high: float
    num_seeds: int

    @property
    def decided(self) -> bool:
        """Whether the interval excludes 0; the sign of `mean` then says which method is better."""
        return self.low > 0 or self.high < 0


def decide_pair(
    differences: Float[np.ndarray, " S"] | Float[np.ndarray, "S K"], *, error: float = 0.05
) -> Decision:
    """Returns the decision at the first seed that settles it, or the undecided one of all seeds.

    Seeds after the deciding one do not count. So a sweep that is killed and resumed decides the
    same, even if a seed or two were still running when it was killed.

    Several benchmarks are averaged to one number per seed. The spread of that number then includes
    the correlation between benchmarks and their different spreads. With several pretrainings, the
    independent draw is a pretraining, not a seed: give the mean difference of each.

    Args:
      differences: score of one method - that of the other with the same seed, for S seeds, or for
        S seeds on K benchmarks. Their order must not depend on the scores.
      error: bound on the chance of a wrong decision. For several comparisons of one sweep, divide
        it by their number.

    Raises:
      ValueError: if there is no seed, there are more than `HORIZON`, a difference is missing (NaN),
        or `error` is not in (0, 0.1].
    """
    # All values are checked before any is looked at: a missing one in the middle must not let the
    # seeds before it decide.
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim not in (1, 2) or not values.size:
        raise ValueError(
            f"differences must be [seeds] or [seeds, benchmarks], at least one, got shape "
            f"{values.shape}."
        )
    if not np.isfinite(values).all():
        seed = int(np.argwhere(~np.isfinite(values))[0][0])
        raise ValueError(
            f"differences must be finite, got {values[seed]} for seed {seed}; leave out seeds that "
            f"lack a score."
        )
    if not 0 < error <= 0.1:
        raise ValueError(f"error must be in (0, 0.1], got {error}.")
    if len(values) > HORIZON:
        raise ValueError(f"differences must be of at most {HORIZON} seeds, got {len(values)}.")
    # Looked at after every seed, and stopped at the first that decides:
    #
    #   1 seed: open   2: open   3: decided   4, 5, … do not count
    by_seed = values if values.ndim == 1 else values.mean(axis=1)
    prefixes = (_interval(by_seed[:num], error) for num in range(1, len(by_seed) + 1))
    return next((decision for decision in prefixes if decision.decided), _interval(by_seed, error))


def decision_bound(num_seeds: int, error: float) -> float:
    """Returns how large |t| must be to decide after some seeds; infinite if no |t| is enough.

    Two hypotheses are compared: an effect drawn from Normal(0, `SCALE` · variance), and no effect.
    The variance is unknown. The ratio of their likelihoods for n differences is
    ```
    (1 + n g)^(-1/2) · ((1 + t²/(n-1)) / (1 + t²/((n-1) (1 + n g))))^(n/2)        g = SCALE
    ```
    Without an effect the ratio is a martingale in n with mean 1. Its chance of ever reaching c is
    at most 1 / c (Ville's inequality), and within the horizon at most `CROSSING` / c. That constant
    is simulated; one simulation covers every variance, since t does not depend on it. The bound is
    the |t| at which the ratio is c = `CROSSING` / error.

    Source: Wang and Ramdas, arXiv:2310.03722, after Lai, Annals of Statistics 4(2), 1976: the
    variance is mixed over the right Haar measure, the effect over a normal distribution.
    """
    # `ratio` is the fraction in the large brackets at which the ratio of likelihoods is c. The
    # fraction is below `grown` for every t, so for few seeds no t is enough.
    grown = 1 + num_seeds * SCALE
    ratio = (grown * (CROSSING / error) ** 2) ** (1 / num_seeds)
    if ratio >= grown:
        return math.inf
    return math.sqrt((num_seeds - 1) * (ratio - 1) / (1 - ratio / grown))


def _interval(values: Float[np.ndarray, " S"], error: float) -> Decision:
    num, mean = len(values), float(values.mean())
    half = decision_bound(num, error)
    if math.isfinite(half):
        half *= float(values.std(ddof=1)) / math.sqrt(num)
    return Decision(mean=mean, low=mean - half, high=mean + half, num_seeds=num)
