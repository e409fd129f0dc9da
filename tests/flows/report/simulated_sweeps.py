"""Simulated sweeps that stop once they have decided: how often wrongly, and after how many seeds.

Methods are equally good, over all seeds, items and pretrainings that could have been drawn, so that
every decision is wrong; or they differ by an effect, in standard deviations of a seed's difference.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float
from scipy import stats

from flows.report.decision import Decision, decide_pair
from flows.report.paired_scores import PairedScores

POWER, LEVEL = 0.8, 0.05

Sweep = tuple[list[PairedScores], list[int]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Equal:
    """A kind of sweep whose methods are equally good.

    Attributes:
      name: its name.
      draw: function from (generator, seeds) to the differences and the pretrainings.
    """

    name: str
    draw: Callable[[np.random.Generator, int], Sweep]


def pictures(num: int, picture: float, seed: float, answer: float = 0.0) -> Equal:
    """Returns sweeps over the same pictures under every seed, on which the methods differ.

    Args:
      num: number of pictures.
      picture: standard deviation of the pictures' differences [points].
      seed: that of a seed's mean.
      answer: that of a single answer.
    """

    def draw(rng: np.random.Generator, num_seeds: int) -> Sweep:
        items = rng.normal(0, picture, num) + rng.normal(0, answer, (num_seeds, num))
        items += rng.normal(0, seed, (num_seeds, 1))
        row = PairedScores(
            values=items.mean(axis=1),
            sources=tuple(map(str, range(num))),
            counts=np.ones(num, int),
            items=items,
        )
        return [row], []

    return Equal(name=f"{num} pictures, spread {picture:g}, of seeds {seed:g}", draw=draw)


def pretrainings(num: int, pretraining: float, seed: float) -> Equal:
    """Returns sweeps over seeds of some pretrainings, with their standard deviations [points]."""

    def draw(rng: np.random.Generator, num_seeds: int) -> Sweep:
        values = rng.normal(0, pretraining, (num, 1)) + rng.normal(0, seed, (num, num_seeds))
        numbers = [number for number in range(num) for _ in range(num_seeds)]
        return [PairedScores(values=values.flatten())], numbers

    return Equal(name=f"{num} pretrainings, spread {pretraining:g}, of seeds {seed:g}", draw=draw)


def trainings(name: str, deviations: Sequence[float]) -> Equal:
    """Returns sweeps over some benchmarks without items, a training each, of unlike spread."""

    def draw(rng: np.random.Generator, num_seeds: int) -> Sweep:
        rows = [
            PairedScores(values=rng.normal(0, deviation, num_seeds), training=str(number))
            for number, deviation in enumerate(deviations)
        ]
        return rows, []

    return Equal(name=name, draw=draw)


def collapses(centre: float) -> Equal:
    """Returns sweeps in which one method loses 30 points in 5 % of its seeds.

    Args:
      centre: difference of the other seeds [points]; 1.5 makes the means equal, 0 the medians.
    """

    def draw(rng: np.random.Generator, num_seeds: int) -> Sweep:
        values = rng.normal(centre, 1, num_seeds) - 30 * (rng.random(num_seeds) < 0.05)
        return [PairedScores(values=values)], []

    equal = "mean" if centre else "typical seed"
    return Equal(name=f"5 % of seeds collapse, equal in the {equal}", draw=draw)


EQUAL = (
    trainings("1 training", [1.0]),
    pictures(200, 20.0, 0.5),
    pictures(1000, 20.0, 0.5),
    pictures(200, 20.0, 3.0),
    pictures(200, 5.0, 0.5, 40.0),
    pretrainings(2, 2.0, 1.0),
    pretrainings(3, 2.0, 1.0),
    trainings("8 trainings", [1.0] * 8),
    trainings("8 trainings, one very noisy", [10.0] + [0.5] * 7),
    collapses(0.0),
    collapses(1.5),
)


def decide_equal(shape: Equal, sweeps: int, max_seeds: int) -> list[Decision]:
    """Returns the ends of sweeps whose methods are equally good, the same in each call."""
    rng = np.random.default_rng(0)
    return [decide_pair(*shape.draw(rng, max_seeds)) for _ in range(sweeps)]


def fixed_design(effect: float) -> int:
    """Returns how many seeds a paired t test needs to find an effect [standard deviations]."""
    num = 2
    while True:
        # With a true effect, the t statistic follows the noncentral t distribution.
        limit = stats.t.isf(LEVEL / 2, num - 1)
        if stats.nct.sf(limit, num - 1, effect * np.sqrt(num)) >= POWER:
            return num
        num += 1


def decide_effect(effect: float, sweeps: int, max_seeds: int) -> list[Decision]:
    """Returns the ends of sweeps with a true effect, the same in each call."""
    rng = np.random.default_rng(0)

    def row() -> PairedScores:
        values: Float[np.ndarray, " S"] = rng.normal(effect, 1, max_seeds)
        return PairedScores(values=values)

    return [decide_pair([row()]) for _ in range(sweeps)]
