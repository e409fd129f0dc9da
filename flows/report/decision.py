"""Whether the seeds so far settle which of two methods is better, however often one looks.

    decision = decide(differences)          # [seeds] or [seeds, benchmarks], paired by seed
    while not decision.decided and decision.num_seeds < max_seeds: …one seed more…

An ordinary 95 % interval that is looked at after every seed excludes 0 sooner or later, for methods
that are alike, too. The interval here holds after all seeds at once: however many looks there are,
up to `HORIZON`, the chance that it ever misses the truth is at most 5 %.
"""

import dataclasses
import math

import numpy as np
from jaxtyping import Float

SCALE = 8.0
"""Variance of the effects that the interval is narrowest for, in units of that of a difference.

Of 1 to 30, 4 to 8 needed the fewest seeds where a fixed study would take 6 to 34
(`python -m perf.decision`).
"""

HORIZON = 200
"""Seeds after which nobody looks any more; the promise is for all looks until then."""

CROSSING = 0.64
"""Chance that the ratio of `bound` ever reaches c within the horizon, times c, at most.

It would be 1 if the ratio could go on for ever and met c exactly; it jumps over it instead. Of
50,000 simulated sweeps without any effect 0.62 / c reached c, for c of 8 to 12, and fewer for a
larger one.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """What the first `num_seeds` seeds say of the difference between two methods.

    Attributes:
      mean: their mean difference.
      low: lower end of the interval; -inf while there are too few seeds for any.
      high: its upper end; inf likewise.
      num_seeds: seeds that were needed; all there are where the matter is open.
    """

    mean: float
    low: float
    high: float
    num_seeds: int

    @property
    def decided(self) -> bool:
        """Whether the interval excludes 0; the sign of `mean` then says who is better."""
        return self.low > 0 or self.high < 0


def decide(
    differences: Float[np.ndarray, " S"] | Float[np.ndarray, "S K"], *, error: float = 0.05
) -> Decision:
    """Returns the first decision that the seeds, in their order, come to; else the open one.

    What follows the deciding seed does not count. So a sweep that is killed and resumed, with a
    seed or two that were under way, decides the same.

    Several benchmarks count as their mean, one number a seed: what they have in common, and that
    some spread more than others, is then in the spread of that number. With several pretrainings,
    a pretraining is a draw, not a seed: give the mean difference of each.

    Args:
      differences: score of one method - that of the other, with the same seed; of S seeds, or of S
        seeds on K benchmarks. Their order must not depend on the scores.
      error: bound on the chance of a wrong decision. For several comparisons of one sweep, divide
        it by their number.

    Raises:
      ValueError: if there is no seed, or more than `HORIZON`, a difference is missing (NaN), or
        `error` is not in (0, 0.1].
    """
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
    by_seed = values if values.ndim == 1 else values.mean(axis=1)
    prefixes = (_interval(by_seed[:num], error) for num in range(1, len(by_seed) + 1))
    return next((one for one in prefixes if one.decided), _interval(by_seed, error))


def bound(num_seeds: int, error: float) -> float:
    """Returns how large |t| must be after some seeds; infinite where no |t| would do.

    With an effect drawn from Normal(0, `SCALE` · variance) against none, and nothing known of the
    variance, the ratio of likelihoods of n differences is
    ```
    (1 + n g)^(-1/2) · ((1 + t²/(n-1)) / (1 + t²/((n-1) (1 + n g))))^(n/2)        g = SCALE
    ```
    Where there is no effect it is a martingale with mean 1 in n, whose chance of ever reaching
    c is at most 1 / c (Ville), and within the horizon `CROSSING` / c: t does not depend on the
    variance, so one simulation tells that for all. The bound is the |t| at which the ratio is
    c = `CROSSING` / error.

    Source: Wang and Ramdas, arXiv:2310.03722, after Lai, Annals of Statistics 4(2), 1976: the
    mixture over the variance is the right Haar measure's, that over the effects a normal one.
    """
    grown = 1 + num_seeds * SCALE
    ratio = (grown * (CROSSING / error) ** 2) ** (1 / num_seeds)
    if ratio >= grown:
        return math.inf
    return math.sqrt((num_seeds - 1) * (ratio - 1) / (1 - ratio / grown))


def _interval(values: Float[np.ndarray, " S"], error: float) -> Decision:
    num, mean = len(values), float(values.mean())
    half = bound(num, error)
    if math.isfinite(half):
        half *= float(values.std(ddof=1)) / math.sqrt(num)
    return Decision(mean=mean, low=mean - half, high=mean + half, num_seeds=num)
