"""A sequential test: decides which of two methods is better, checked after every seed.

    decision = decide_pair(rows, pretrainings)          # differences, as in a comparison
    while not decision.decided and decision.num_seeds < max_seeds: …one seed more…

An ordinary 95 % interval that is checked after every seed excludes 0 sooner or later, even if the
methods are equally good. The intervals here are those of `interval.estimate_interval`, at levels
that make them hold jointly: the chance that any of them, after however many seeds, misses the truth
is at most 5 %. They cover other seeds, other items and other pretrainings, like those of the table,
and are always wider than those: a sweep never calls a difference that the table does not.

No interval knows of what has not been seen. So a few seeds decide nothing (`LEAST_SEEDS`), and a
difference must be larger than what rare losses among pictures could make of it (`unseen_loss`).
"""

import collections
import dataclasses
import math
from collections.abc import Sequence

from scipy import special

from flows.report.interval import ScoreInterval, estimate_interval
from flows.report.paired_scores import SCALE as FULL_SCORE
from flows.report.paired_scores import PairedScores
from flows.report.sources_variance import linked_rows

LEAST_SEEDS = 17
"""Seeds below which nothing is decided, unless the user states another number.

What happens in a share q of seeds is missed by all n with the chance (1 - q)^n. A method that
collapses in a fifth of its seeds hides that from 17 with a chance of 2.3 %, half of the 5 %. The
other half is for collapses that show, but too seldom.
"""

SCALE = 8.0
"""Prior variance of the effect, in units of the variance of one difference.

The interval is narrowest for effects of this size. Of the values 1 to 30, those from 4 to 8 needed
the fewest seeds for effects that a study of fixed size would take 6 to 34 seeds for
(simulated in tests/flows/report).
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """The difference between two methods after `num_seeds` seeds, and whether it is decided.

    Attributes:
      mean: mean difference over these seeds.
      low: lower end of the interval; -inf while there are too few seeds for one.
      high: upper end of the interval; inf likewise.
      num_seeds: number of seeds needed to decide, of each pretraining; all seeds given if it is
        undecided.
      error: bound on the chance that it is decided wrongly.
      unseen: difference that losses on pictures unlike those seen could make; see `unseen_loss`.
      found: the interval of the look, which knows nothing of unseen losses, with the numbers that
        it is made from; None before the first look.
      num_benchmarks: number of benchmarks that the difference is the mean over.
    """

    mean: float
    low: float
    high: float
    num_seeds: int
    error: float
    unseen: float = 0.0
    found: ScoreInterval | None = None
    num_benchmarks: int = 0

    @property
    def hinges_on_unseen(self) -> bool:
        """Whether it is open only since losses that the pictures do not show could make it up."""
        if self.decided or math.isinf(self.low) or self.found is None or self.found.low is None:
            return False
        return self.found.low > 0 or (self.found.high or 0.0) < 0

    @property
    def decided(self) -> bool:
        """Whether the interval excludes 0; the sign of `mean` then says which method is better."""
        return self.low > 0 or self.high < 0


def decide_pair(
    rows: Sequence[PairedScores],
    pretrainings: Sequence[int] = (),
    *,
    error: float = 0.05,
    least_seeds: int = LEAST_SEEDS,
) -> Decision:
    """Returns the decision at the first seed that settles it, or the undecided one of all seeds.

    Seeds after the deciding one do not count. So a sweep that is killed and resumed decides the
    same, even if a seed or two were still running when it was killed. With several pretrainings,
    one seed of each is added at a time, and `num_seeds` counts these rounds.

    Args:
      rows: differences of one method to the other on each benchmark, all with the same seeds. Their
        order must not depend on the scores.
      pretrainings: number of the pretraining of each seed, as many seeds of each; empty if all
        share one.
      error: bound on the chance of a wrong decision. For several comparisons of one sweep, divide
        it by their number.
      least_seeds: number of seeds, of each pretraining, below which nothing is decided.

    Raises:
      ValueError: if there is no seed, or `error` is not in (0, 0.1].
    """
    if not rows or not rows[0].num_seeds:
        raise ValueError("rows must be at least one benchmark with at least one seed, got none.")
    if not 0 < error <= 0.1:
        raise ValueError(f"error must be in (0, 0.1], got {error}.")
    numbers = list(pretrainings) or [0] * rows[0].num_seeds
    # The round in which each seed came: 0 1 2 of the first pretraining, 0 1 2 of the second.
    rounds = [numbers[:place].count(number) for place, number in enumerate(numbers)]
    most = max(rounds) + 1
    # Looked at after every seed from the least number on, and stopped at the first that decides:
    #
    #   17 seeds: open   18: open   19: decided   20, 21, … do not count
    decision = None
    for num in range(min(least_seeds, most), most + 1):
        places = [place for place, number in enumerate(rounds) if number < num]
        decision = _decision_at_look(
            [row.of_seeds(places) for row in rows], [numbers[place] for place in places], num, error
        )
        if num < least_seeds:
            return dataclasses.replace(decision, low=-math.inf, high=math.inf)
        if decision.decided:
            break
    assert decision is not None
    return decision


def unseen_loss(rows: Sequence[PairedScores], error: float) -> float:
    """Returns how much of the mean difference losses on pictures unlike those seen could make up.

    Losses that occur in a share q of pictures are missed by all n of a benchmark with the chance
    (1 - q)^n. So with the chance `error`, a method that looks better by up to 100 q points loses
    all of the scale on one picture in 1 / q, which none of the n shows, and is no better.

    Source: Hanley and Lippman-Hand, JAMA 249(13), 1983: with 5 %, q is nearly 3 / n.
    """
    # Of benchmarks that share pictures, a loss concerns all at once; of others, one at a time: that
    # several hide such losses is less likely than that one does.
    losses = [0.0]
    for group in linked_rows([row for row in rows if row.sources]):
        # A loss that shows on a picture of few items hardly moves the mean: pictures count as many
        # as of equal size would average as well.
        num_sources = group[0].num_effective_sources
        if len(group) > 1:
            weights = collections.Counter[str]()
            for row in group:
                weights.update(dict(zip(row.sources, row.counts / row.counts.sum(), strict=True)))
            num_sources = len(group) ** 2 / sum(weight**2 for weight in weights.values())
        scale = max(FULL_SCORE, *(float(abs(row.items).max()) for row in group))
        losses.append((1 - error ** (1 / num_sources)) * scale * len(group) / len(rows))
    return max(losses)


def decision_bound(num_seeds: int, error: float) -> float:
    """Returns how large |t| must be to decide after some seeds; infinite if no |t| is enough.

    Two hypotheses are compared: an effect drawn from Normal(0, `SCALE` · variance), and no effect.
    The variance is unknown. The ratio of their likelihoods for n differences is
    ```
    (1 + n g)^(-1/2) · ((1 + t²/(n-1)) / (1 + t²/((n-1) (1 + n g))))^(n/2)        g = SCALE
    ```
    Without an effect the ratio is a martingale in n with mean 1, so its chance of ever reaching c
    is at most 1 / c (Ville's inequality). The bound is the |t| at which the ratio is c = 1 / error.

    Source: Wang and Ramdas, arXiv:2310.03722, after Lai, Annals of Statistics 4(2), 1976: the
    variance is mixed over the right Haar measure, the effect over a normal distribution.
    """
    # `ratio` is the fraction in the large brackets at which the ratio of likelihoods is c. The
    # fraction is below `grown` for every t, so for few seeds no t is enough.
    grown = 1 + num_seeds * SCALE
    ratio = (grown / error**2) ** (1 / num_seeds)
    if ratio >= grown:
        return math.inf
    return math.sqrt((num_seeds - 1) * (ratio - 1) / (1 - ratio / grown))


def _decision_at_look(
    rows: Sequence[PairedScores], pretrainings: Sequence[int], num: int, error: float
) -> Decision:
    bound = decision_bound(num, error)
    # The share of Student's t beyond the bound is the level of this look's interval.
    level = 2 * float(special.stdtr(num - 1, -bound)) if math.isfinite(bound) else error
    found = estimate_interval(rows, pretrainings, level=level)
    unseen = unseen_loss(rows, error)
    low, high = -math.inf, math.inf
    if math.isfinite(bound) and found.low is not None and found.high is not None:
        low, high = min(found.low, found.mean - unseen), max(found.high, found.mean + unseen)
    return Decision(
        mean=found.mean,
        low=low,
        high=high,
        num_seeds=num,
        error=error,
        unseen=unseen,
        found=found,
        num_benchmarks=len(rows),
    )
