"""Simulated sweeps that stop once they have decided: how often wrongly, and after how many seeds.

Methods are equally good, over all seeds, items and pretrainings that could have been drawn, so that
every decision is wrong; or they differ by an effect, in standard deviations of a seed's difference.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int
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


def collapses(share: float, *, loss: float = 30.0, equal: str = "mean") -> Equal:
    """Returns sweeps in which one method loses some points in a share of its seeds.

    Args:
      share: share of its seeds.
      loss: what it loses in them [points].
      equal: "mean" if it gains as much over the other seeds, else "typical seed".
    """
    centre = share * loss if equal == "mean" else 0.0

    def draw(rng: np.random.Generator, num_seeds: int) -> Sweep:
        values = rng.normal(centre, 1, num_seeds) - loss * (rng.random(num_seeds) < share)
        return [PairedScores(values=values)], []

    name = f"{share:.0%} of seeds collapse by {loss:g}, equal in the {equal}"
    return Equal(name=name, draw=draw)


def rare_losses(num: int, one_in: int, *, everywhere: bool = True, num_rows: int = 1) -> Equal:
    """Returns sweeps in which a method loses 90 points on few pictures, with equal means.

    Args:
      num: number of pictures of each benchmark.
      one_in: on one picture of so many it loses.
      everywhere: whether it gains a little on all others; else by 10 points on a few.
      num_rows: number of benchmarks.
    """
    share = 1 / one_in
    gaining = 1.0 if everywhere else 9 * share / (1 - share)
    gain = 90 * share / (1 - share) / gaining

    def draw(rng: np.random.Generator, num_seeds: int) -> Sweep:
        rows = []
        for number in range(num_rows):
            effects = np.where(rng.random(num) < gaining, gain, 0.0)
            effects = np.where(rng.random(num) < share, -90.0, effects)
            items = effects + rng.normal(0, 0.2, (num_seeds, 1))
            rows.append(of_pictures(items, np.ones(num, int), training=str(number)))
        return rows, []

    others = "all others" if everywhere else "a few"
    name = f"{num_rows} x {num} pictures, 1 in {one_in} loses 90, {others} gain"
    return Equal(name=name, draw=draw)


def shared_pictures(counts: Sequence[int], num_rows: int, num_budgets: int) -> Equal:
    """Returns sweeps over benchmarks that ask about the same pictures, at several budgets.

    Args:
      counts: number of items of each picture.
      num_rows: number of benchmarks.
      num_budgets: number of budgets, whose mean is compared.
    """

    def draw(rng: np.random.Generator, num_seeds: int) -> Sweep:
        rows, total = [], sum(counts)
        effects = rng.normal(0, 20, len(counts))
        for number in range(num_rows):
            at_budgets = []
            for _ in range(num_budgets):
                items = np.repeat(effects + rng.normal(0, 3, len(counts)), counts)
                items = items + rng.normal(0, 5, (num_seeds, total))
                items += rng.normal(0, 0.5, (num_seeds, 1))
                row = of_pictures(items, np.array(counts), training=str(number), shared=True)
                at_budgets.append(row)
            rows.append(PairedScores.mean_of(at_budgets))
        return rows, []

    name = f"the same {len(counts)} pictures in {num_rows} benchmarks, {num_budgets} budgets"
    return Equal(name=name, draw=draw)


def of_pictures(
    items: Float[np.ndarray, "S N"],
    counts: Int[np.ndarray, " C"],
    *,
    training: str,
    shared: bool = False,
) -> PairedScores:
    """Returns differences on a benchmark's own pictures, or on those of all benchmarks."""
    prefix = "" if shared else f"{training}/"
    return PairedScores(
        values=items.mean(axis=1),
        sources=tuple(f"{prefix}{number:05d}" for number in range(len(counts))),
        counts=counts,
        items=items,
        training=training,
        low=-100.0,
        high=100.0,
    )


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
    collapses(0.05, equal="typical seed"),
    collapses(0.2),
    collapses(0.2, loss=10.0),
    rare_losses(50, 20),
    rare_losses(50, 100),
    rare_losses(200, 20),
    rare_losses(200, 50, everywhere=False),
    rare_losses(200, 200),
    rare_losses(200, 200, everywhere=False),
    rare_losses(200, 200, num_rows=4),
    shared_pictures([180] + [20] * 9, 2, 3),
    shared_pictures([max(1, 100 // (place + 1)) for place in range(50)], 2, 2),
)

HIDDEN = (collapses(0.05), collapses(0.1))
"""Sweeps whose collapses are too rare for the least number of seeds to show them."""


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
    """Returns the ends of sweeps with a true effect, decided from two seeds on."""
    rng = np.random.default_rng(0)

    def row() -> PairedScores:
        values: Float[np.ndarray, " S"] = rng.normal(effect, 1, max_seeds)
        return PairedScores(values=values)

    return [decide_pair([row()], least_seeds=2) for _ in range(sweeps)]
