"""How often a sweep that stops once it has decided is wrong, and how many seeds it takes.

    python -m perf.decision

Differences between two methods are drawn from Normal(effect, 1), one per seed, so effects are in
standard deviations of a seed's difference. A row is a study with a smallest effect of interest;
*fixed* is the number of seeds with which a paired t test finds that effect in 80 % of studies. The
sweep tests after every seed, and gives up after twice as many as *fixed*.

wrong      share of sweeps that decided for a method that is not better; the worst of all effects
           and of no effect
right      share of sweeps that decided for the better method, at the smallest effect
seeds      mean number of seeds, over *fixed*: at the smallest effect, at twice and three times as
           much, and averaged over true effects from one to three times as much
"""

import argparse
import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import stats

from flows.report.decision import decide_pair
from perf.timing import table

HEADER = ["smallest effect", "fixed", "wrong", "right", "seeds x1", "x2", "x3", "x1 to x3"]
POWER, LEVEL = 0.8, 0.05
TIMES = np.linspace(1, 3, 9)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of many sweeps with one true effect.

    Attributes:
      wrong: share of sweeps that decided for a method that is not better.
      decided: share of sweeps that decided.
      seeds: mean number of seeds taken.
    """

    wrong: float
    decided: float
    seeds: float


def fixed_design(effect: float) -> int:
    """Returns how many seeds a paired t test needs to find an effect [standard deviations]."""
    num = 2
    while True:
        # With a true effect, the t statistic follows the noncentral t distribution.
        limit = stats.t.isf(LEVEL / 2, num - 1)
        if stats.nct.sf(limit, num - 1, effect * np.sqrt(num)) >= POWER:
            return num
        num += 1


def simulate(effect: float, *, max_seeds: int, sweeps: int) -> Outcome:
    """Returns the outcome of sweeps with a true effect, the same in each call.

    Args:
      effect: true effect, at least 0; with 0 every decision is wrong [standard deviations].
      max_seeds: number of seeds after which a sweep gives up.
      sweeps: number of sweeps.
    """
    rng = np.random.default_rng(0)
    ends = [decide_pair(rng.normal(effect, 1, max_seeds)) for _ in range(sweeps)]
    made = [end for end in ends if end.decided]
    return Outcome(
        wrong=sum(end.mean < 0 or effect == 0 for end in made) / sweeps,
        decided=len(made) / sweeps,
        seeds=sum(end.num_seeds for end in ends) / sweeps,
    )


def measure(effect: float, sweeps: int) -> list[str]:
    """Returns a row of the table."""
    fixed = fixed_design(effect)
    none = simulate(0.0, max_seeds=2 * fixed, sweeps=sweeps)
    found = [simulate(effect * k, max_seeds=2 * fixed, sweeps=sweeps) for k in TIMES]
    ratios = [one.seeds / fixed for one in found]
    right = found[0].decided - found[0].wrong
    wrong = max(one.wrong for one in (none, *found))
    shown = [ratios[0], ratios[len(TIMES) // 2], ratios[-1], float(np.mean(ratios))]
    return [f"{effect:g}", str(fixed), f"{wrong:.1%}", f"{right:.0%}", *(f"{r:.2f}" for r in shown)]


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--sweeps", type=int, default=2000)
    parser.add_argument("--effects", type=float, nargs="+", default=[0.3, 0.5, 0.75, 1.0, 1.5])
    args = parser.parse_args(words)
    print(table(HEADER, [measure(effect, args.sweeps) for effect in args.effects]))


if __name__ == "__main__":
    main()
