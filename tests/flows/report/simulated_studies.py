"""Simulated studies whose truth is known, to see how often the report's 95 % intervals contain it.

Each study draws its seeds, its sources (pictures, videos), their items and noise anew; the truth is
that of all seeds and sources that could have been drawn. Beside the share of intervals that contain
the truth stands their mean width, and that of an oracle's.

The oracle estimates the same mean. It knows the variance of each of its parts, and so the degrees
of freedom that the estimate of their sum has, but not the truth. Of a proportion it knows how many
independent answers its items are worth, and gives the binomial interval for as many (mid-P). Other
oracles would have other widths; none that does not know the truth can be much better than these.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float
from scipy import special

from flows.report.interval import binomial_interval, estimate_interval
from flows.report.paired_scores import PairedScores

TRUTH = 2.0
SEEDS = (1, 2, 3, 5)

Study = tuple[list[PairedScores], list[int]]
Draw = Callable[[np.random.Generator, int], Study]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of study.

    Attributes:
      name: its name.
      draw: function from (generator, seeds) to the benchmarks' scores and the pretrainings.
      parts: function from the number of seeds to the true variance of each independent part of the
        mean, and its degrees of freedom; those of a known part are infinite.
      truth: true mean.
      is_percentage: whether the scores are proportions.
      seeds: numbers of seeds to try.
    """

    name: str
    draw: Draw
    parts: Callable[[int], list[tuple[float, float]]]
    truth: float = TRUTH
    is_percentage: bool = False
    seeds: tuple[int, ...] = SEEDS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coverage:
    """Outcome of many studies of one shape.

    Attributes:
      covered: share whose interval contains the truth.
      error: standard error of that share, were it 0.95: sqrt(0.95 * 0.05 / studies).
      width: mean width of the intervals [points].
      oracle: mean width of the oracle's intervals [points].
      outside: share whose interval leaves the scale.
    """

    covered: float
    error: float
    width: float
    oracle: float
    outside: float


def simulate(shape: Shape, num_seeds: int, studies: int) -> Coverage:
    """Returns the coverage of simulated studies of a shape, the same in each call."""
    rng = np.random.default_rng(0)
    parts = shape.parts(num_seeds)
    total = sum(variance for variance, _ in parts)
    squares = sum(variance**2 / degrees for variance, degrees in parts)
    freedom = total**2 / squares if squares else math.inf
    quantile = float(special.stdtrit(freedom, 0.975))
    hits, widths, oracles, outside = [], [], [], []
    for _ in range(studies):
        found = estimate_interval(*shape.draw(rng, num_seeds))
        assert found.low is not None
        assert found.high is not None
        hits.append(found.low - 1e-9 <= shape.truth <= found.high + 1e-9)
        widths.append(found.high - found.low)
        outside.append(shape.is_percentage and not 0 <= found.low <= found.high <= 100)
        oracles.append(_oracle_width(shape, total, quantile, found.mean))
    return Coverage(
        covered=float(np.mean(hits)),
        error=math.sqrt(0.95 * 0.05 / studies),
        width=float(np.mean(widths)),
        oracle=float(np.mean(oracles)),
        outside=float(np.mean(outside)),
    )


def _oracle_width(shape: Shape, variance: float, quantile: float, mean: float) -> float:
    if not shape.is_percentage:
        return 2 * quantile * math.sqrt(variance)
    answers = shape.truth * (100 - shape.truth) / variance * (1.959964 / quantile) ** 2
    low, high = binomial_interval(mean / 100, answers, 0.05)
    return 100 * (high - low)


def proportion(share: float, num: int) -> Shape:
    """Returns a benchmark of items that are right or wrong, each with a picture of its own.

    Items are easy or hard, the same for all seeds: their chance of being right is drawn from a beta
    distribution with mean `share`, and answers of two seeds correlate by 1/6.
    """
    shared = share * (1 - share) / 6 * 1e4  # Variance of the items' chances.
    own = share * (1 - share) * 1e4 - shared

    def draw(rng: np.random.Generator, num_seeds: int) -> Study:
        chances = rng.beta(5 * share, 5 * (1 - share), num)
        scores = 100.0 * (rng.random((num_seeds, num)) < chances)
        return [_row(scores, np.ones(num, int))], [0] * num_seeds

    def parts(num_seeds: int) -> list[tuple[float, float]]:
        if num_seeds == 1:
            return [((shared + own) / num, math.inf)]
        return [(own / num / num_seeds, num_seeds - 1), (shared / num, num - 1)]

    return Shape(
        name=f"proportion {share:g} of {num} items",
        draw=draw,
        parts=parts,
        truth=100 * share,
        is_percentage=True,
    )


@dataclasses.dataclass(frozen=True)
class Spread:
    """Standard deviations of a difference [points]: of a seed's mean, of a source's, and so on."""

    seed: float = 0.3
    source: float = 20.0
    both: float = 2.0
    answer: float = 10.0
    pretraining: float = 0.0


def clusters(
    name: str,
    benchmarks: Sequence[Sequence[int]],
    spread: Spread = Spread(),
    pretrainings: Sequence[int] = (),
    seeds: tuple[int, ...] = SEEDS,
) -> Shape:
    """Returns a difference on benchmarks whose sources have the given numbers of items.

    Args:
      name: name of the shape.
      benchmarks: number of items of each source, benchmark by benchmark.
      spread: standard deviations.
      pretrainings: number of the pretraining of each seed; empty if all share one.
      seeds: numbers of seeds to try.
    """
    sizes = [np.array(counts) for counts in benchmarks]

    def draw(rng: np.random.Generator, num_seeds: int) -> Study:
        numbers = [*pretrainings] or [0] * num_seeds
        shared = rng.normal(0, spread.pretraining, max(numbers) + 1)[numbers]
        rows = []
        for number, counts in enumerate(sizes):
            shape = (num_seeds, len(counts))
            effects = rng.normal(0, spread.source, len(counts)) + rng.normal(0, spread.both, shape)
            scores = np.repeat(effects, counts, axis=1)
            scores += rng.normal(0, spread.answer, scores.shape)
            # The interval of a single seed is about that one training.
            of_seed = rng.normal(0, spread.seed, num_seeds) if num_seeds > 1 else 0.0
            scores += TRUTH + (shared + of_seed)[:, None]
            rows.append(_row(scores, counts, str(number)))
        return rows, numbers

    def parts(num_seeds: int) -> list[tuple[float, float]]:
        found = []
        for counts in sizes:
            squares = float(((counts / counts.sum()) ** 2).sum())
            of_seed = spread.both**2 * squares + spread.answer**2 / counts.sum()
            of_seed += spread.seed**2 * (num_seeds > 1)
            of_source = spread.source**2 * squares / len(sizes) ** 2
            of_seed /= num_seeds * len(sizes) ** 2
            if num_seeds == 1:  # One part, which the sources show.
                found.append((of_seed + of_source, len(counts) - 1))
                continue
            found += [(of_seed, num_seeds - 1), (of_source, len(counts) - 1)]
        if spread.pretraining:
            share = np.bincount(pretrainings) / len(pretrainings)
            found.append((spread.pretraining**2 * float((share**2).sum()), len(share) - 1))
        return [part for part in found if part[0]]

    return Shape(name=name, draw=draw, parts=parts, seeds=seeds)


def trainings(name: str, deviations: Sequence[float]) -> Shape:
    """Returns a difference on benchmarks without items, one training each, of unlike spread."""
    spreads = np.array(deviations)

    def draw(rng: np.random.Generator, num_seeds: int) -> Study:
        values = TRUTH + spreads[:, None] * rng.normal(size=(len(spreads), num_seeds))
        rows = [PairedScores(values=of, training=str(k)) for k, of in enumerate(values)]
        return rows, [0] * num_seeds

    def parts(num_seeds: int) -> list[tuple[float, float]]:
        variances = spreads**2 / num_seeds / len(spreads) ** 2
        return [(float(variance), num_seeds - 1) for variance in variances]

    return Shape(name=name, draw=draw, parts=parts, seeds=SEEDS[1:])


def source_names(counts: Sequence[int] | np.ndarray, training: str = "") -> tuple[str, ...]:
    """Returns the names of sources, in order."""
    return tuple(f"{training}/{number:04d}" for number in range(len(counts)))


def _row(scores: Float[np.ndarray, "S N"], counts: np.ndarray, training: str = "") -> PairedScores:
    is_binary = bool(np.isin(scores, (0.0, 100.0)).all())
    return PairedScores(
        values=scores.mean(axis=1),
        sources=source_names(counts, training),
        counts=counts,
        items=scores,
        training=training,
        low=0.0 if is_binary else -math.inf,
        high=100.0 if is_binary else math.inf,
        is_binary=is_binary,
    )


def _zipf(num: int) -> list[int]:
    return [max(1, 400 // (rank + 1)) for rank in range(num)]


_MIXED = [1 + number % 3 for number in range(100)]

SHAPES = (
    proportion(0.98, 20),
    proportion(0.98, 50),
    proportion(0.995, 200),
    proportion(0.5, 20),
    proportion(0.5, 1000),
    proportion(0.9, 50),
    clusters("10 clusters, one with half the items", [[180] + [20] * 9]),
    clusters("20 Zipf clusters", [_zipf(20)]),
    clusters("50 Zipf clusters", [_zipf(50)]),
    clusters("10 equal clusters", [[20] * 10]),
    clusters("benchmarks of 5 and 1,000 items", [[1] * 5, [1] * 1000]),
    clusters("benchmarks of 10 and 7 of 500 items", [[1] * 10] + [[1] * 500] * 7),
    trainings("2 trainings, one very noisy", [10.0, 0.5]),
    trainings("8 trainings, one very noisy", [10.0] + [0.5] * 7),
    trainings("27 trainings, one very noisy", [10.0] + [0.5] * 26),
    trainings("8 equal trainings", [1.0] * 8),
    trainings("27 equal trainings", [1.0] * 27),
    clusters("seeds differ most", [_MIXED], Spread(2.0, 1.0, 5.0, 10.0)),
    clusters("sources differ most", [_MIXED], Spread(0.5, 20.0, 5.0, 10.0)),
    clusters("source and seed together", [_MIXED], Spread(1.0, 10.0, 10.0, 20.0)),
    clusters("single answers differ most", [_MIXED], Spread(0.0, 0.0, 0.0, 40.0)),
    clusters("8 benchmarks, seeds differ most", [_MIXED] * 8, Spread(2.0, 1.0, 5.0, 10.0)),
    *(
        clusters(
            f"pretrainings of seeds {''.join(map(str, numbers))}",
            [[1] * 200],
            Spread(1.0, 10.0, 5.0, 20.0, 3.0),
            numbers,
            (len(numbers),),
        )
        for numbers in ([0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 0, 0, 1], [0, 0, 0, 1, 2])
    ),
)
