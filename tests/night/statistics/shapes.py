"""Studies of two equal methods, in shapes that no interval, prior or bound was chosen on.

    SHAPES["one noisy training"].draw(rng)  ─▶  a `Drawn` for each benchmark: items [methods, S, N]

Both methods are drawn alike, so every true difference is 0.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

Sizes = Callable[[np.random.Generator], Int[np.ndarray, " C"]]
"""Function to the number of items of each source."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawn:
    """The scores of both methods on one benchmark.

    Attributes:
      items: score of each item, source after source.
      counts: number of items of each source.
      sources: names of the sources.
      is_percentage: whether the scores are within 0-100.
    """

    items: Float[np.ndarray, "2 S N"]
    counts: Int[np.ndarray, " C"]
    sources: Sequence[str]
    is_percentage: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """One shape of study.

    Attributes:
      draw: draws the benchmarks of one study.
      freedom: degrees of freedom of the seeds' variance, pooled over all trainings. A study of one
        seed has none: its intervals hold for that training.
      pretrainings: number of the pretraining of each seed.
    """

    draw: Callable[[np.random.Generator], list[Drawn]]
    freedom: int
    pretrainings: tuple[int, ...]


def alone(rng: np.random.Generator) -> Int[np.ndarray, " C"]:
    """Returns sizes of 150 sources with one item each."""
    return np.ones(150, int)


def uneven(num: int) -> Sizes:
    """Returns sizes from 1 to 200, most of them small."""
    return lambda rng: np.clip(np.exp(rng.normal(2, 1.4, num)).round(), 1, 200).astype(int)


def one_large(rng: np.random.Generator) -> Int[np.ndarray, " C"]:
    """Returns sizes of which one is half of all."""
    return np.array([95, *[5] * 19])


def points(
    rng: np.random.Generator,
    *,
    num_benchmarks: int,
    pretrainings: Sequence[int],
    sizes: Sizes = alone,
    seed: float | Sequence[float] = 0.0,
    pretraining: float = 0.0,
    source: float = 10.0,
    by_size: float = 0.0,
    both: float = 3.0,
    answer: float = 20.0,
    tails: Callable[..., np.ndarray] = np.random.Generator.standard_normal,
    shared: int = 0,
) -> list[Drawn]:
    """Draws scores without bounds.

    Args:
      rng: the generator.
      num_benchmarks: number of benchmarks, each with its own training.
      pretrainings: number of the pretraining of each seed.
      sizes: function to the number of items of each source.
      seed: deviation of a seed's effect, or that of each training [points].
      pretraining: deviation of a pretraining's effect, on all benchmarks.
      source: deviation of a source's effect.
      by_size: power of a source's size that this deviation grows with.
      both: deviation of the effect of a seed on a source.
      answer: deviation of a single answer.
      tails: distribution of sources and answers, of variance 1.
      shared: number of sources that all benchmarks have in common.
    """
    num, drawn = len(pretrainings), []
    seeds = np.broadcast_to(seed, (num_benchmarks,))
    start = rng.normal(0, pretraining, (2, max(pretrainings) + 1, 1))[:, list(pretrainings)]
    common = tails(rng, (2, shared))
    for k in range(num_benchmarks):
        counts = sizes(rng)
        effects = tails(rng, (2, len(counts)))
        effects[:, :shared] = common
        effects = source * effects * counts**by_size
        mixed = effects[:, None] + both * tails(rng, (2, num, len(counts)))
        items = np.repeat(mixed, counts, axis=2)
        items = items + answer * tails(rng, items.shape)
        items += start + rng.normal(0, seeds[k], (2, num, 1))
        names = [f"common/{i}" if i < shared else f"{k}/{i}" for i in range(len(counts))]
        drawn.append(Drawn(items=items, counts=counts, sources=names))
    return drawn


def graded(
    rng: np.random.Generator,
    *,
    num_benchmarks: int,
    pretrainings: Sequence[int],
    num_items: int,
    grade: Callable[[np.random.Generator, np.ndarray], np.ndarray],
    seed: float = 0.0,
    alike: float = 0.5,
    is_percentage: bool = True,
) -> list[Drawn]:
    """Draws scores as a metric gives them.

    Args:
      rng: the generator.
      num_benchmarks: number of benchmarks.
      pretrainings: number of the pretraining of each seed.
      num_items: number of items, each of a source of its own.
      grade: function from latent values, standard normal, to scores.
      seed: deviation of a seed's latent effect.
      alike: correlation of the methods' effects on an item.
      is_percentage: whether the scores are within 0-100.
    """
    # latent = effect of the item, half of its variance, shared in part by the methods + an answer
    num, drawn = len(pretrainings), []
    for k in range(num_benchmarks):
        of_all = rng.normal(0, 1, num_items)
        own = rng.normal(0, 1, (2, num_items))
        item = alike**0.5 * of_all + (1 - alike) ** 0.5 * own
        latent = 0.5**0.5 * (item[:, None] + rng.normal(0, 1, (2, num, num_items)))
        items = grade(rng, latent + rng.normal(0, seed, (2, num, 1)))
        names = [f"{k}/{i}" for i in range(num_items)]
        ones = np.ones(num_items, int)
        drawn.append(Drawn(items=items, counts=ones, sources=names, is_percentage=is_percentage))
    return drawn


def right(share: float) -> Callable[[np.random.Generator, np.ndarray], np.ndarray]:
    """Returns right or wrong answers, a share of them right."""
    return lambda rng, latent: 100.0 * (_uniform(latent) < share)


def vqa(rng: np.random.Generator, latent: np.ndarray) -> np.ndarray:
    """Returns VQA accuracies: how many of ten people gave the answer, three being enough."""
    return np.choose((_uniform(latent)[..., None] > (0.1, 0.15, 0.2)).sum(-1), (0, 30, 60, 100.0))


def iou(rng: np.random.Generator, latent: np.ndarray) -> np.ndarray:
    """Returns overlaps: 15 % are 0, the others mostly high."""
    uniform = _uniform(latent)
    return 100 * np.maximum((uniform - 0.15) / 0.85, 0) ** 0.25


def cider(rng: np.random.Generator, latent: np.ndarray) -> np.ndarray:
    """Returns caption scores: skewed, a tenth of them 0, some above 300."""
    return 60 * np.exp(0.9 * latent) * (rng.random(latent.shape) > 0.1)


def rare_losses(rng: np.random.Generator, latent: np.ndarray) -> np.ndarray:
    """Returns answers of which one in twenty is lost."""
    return np.where(_uniform(latent) < 0.05, 5.0, 95.0)


def collapse(rng: np.random.Generator, latent: np.ndarray) -> np.ndarray:
    """Returns right or wrong answers of trainings of which one in five has failed."""
    failed = rng.random((*latent.shape[:2], 1)) < 0.2
    return 100.0 * (_uniform(latent) < np.where(failed, 0.3, 0.7))


def near_copies(rng: np.random.Generator, latent: np.ndarray) -> np.ndarray:
    """Returns the same answers for both methods and all seeds, but for one in a hundred."""
    same = _uniform(latent[:1, :1]) < 0.7
    return 100.0 * (same ^ (rng.random(latent.shape) < 0.01))


def _uniform(latent: np.ndarray) -> np.ndarray:
    """Returns each value's rank among standard normal ones, 0-1 (logistic approximation)."""
    return 1 / (1 + np.exp(-1.702 * latent))


def heavy(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draws from Student's t with 3 degrees of freedom, of variance 1."""
    return rng.standard_t(3, shape) / 3**0.5


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draws from an exponential distribution, of mean 0 and variance 1."""
    return rng.exponential(1, shape) - 1


def _shape(draw: Callable[..., list[Drawn]], benchmarks: int, seeds: int, **how) -> Shape:
    numbers = (0,) * seeds
    make = functools.partial(draw, num_benchmarks=benchmarks, pretrainings=numbers, **how)
    return Shape(draw=make, freedom=benchmarks * (seeds - 1), pretrainings=numbers)


def _nested(benchmarks: int, pretrainings: int, seeds: int) -> Shape:
    numbers = tuple(np.repeat(np.arange(pretrainings), seeds).tolist())
    how = {"num_benchmarks": benchmarks, "pretrainings": numbers, "pretraining": 3.0, "seed": 1.0}
    return Shape(
        draw=functools.partial(points, **how), freedom=pretrainings - 1, pretrainings=numbers
    )


SHAPES: dict[str, Shape] = {
    # Where the variance lies, for 1 to 10 seeds and 2 to 43 benchmarks.
    **{
        f"single answers differ most, {k} benchmarks, {s} seeds": _shape(
            points, k, s, source=0.0, both=0.0, answer=40.0
        )
        for k, s in ((27, 2), (27, 3), (27, 5), (2, 3), (43, 3), (8, 10), (8, 1))
    },
    **{
        f"seeds differ most, {k} benchmarks, {s} seeds": _shape(
            points, k, s, seed=2.0, source=1.0, both=5.0, answer=10.0
        )
        for k, s in ((27, 2), (27, 3), (27, 5), (2, 3), (43, 3), (1, 3))
    },
    **{
        f"seeds and pictures alike, 27 benchmarks, {s} seeds": _shape(
            points, 27, s, seed=1.2, source=12.0
        )
        for s in (2, 3)
    },
    # Trainings that are unlike each other.
    **{
        f"one noisy training of 27, {s} seeds": _shape(points, 27, s, seed=[10.0, *[0.5] * 26])
        for s in (2, 3, 5)
    },
    "two noisy trainings of 10, 3 seeds": _shape(points, 10, 3, seed=[5.0, 5.0, *[0.5] * 8]),
    "noise of trainings lognormal, 3 seeds": _shape(
        points, 27, 3, seed=np.exp(np.random.default_rng(27).normal(-0.5, 1, 27)).tolist()
    ),
    **{f"{p} pretrainings of {s}, 8 benchmarks": _nested(8, p, s) for p, s in ((3, 3), (5, 1))},
    # Several items of a picture, and pictures of several benchmarks.
    **{
        f"{c} pictures of 1 to 200 items": _shape(points, 4, 3, sizes=uneven(c))
        for c in (10, 30, 100)
    },
    "effects grow with the items of a picture": _shape(
        points, 4, 3, sizes=uneven(40), source=4.0, by_size=0.5
    ),
    "effects shrink with the items of a picture": _shape(
        points, 4, 3, sizes=uneven(40), source=30.0, by_size=-0.5
    ),
    "one picture has half of the items": _shape(points, 4, 3, sizes=one_large, source=15.0),
    **{
        f"{n} of 150 pictures in all of 4 benchmarks": _shape(points, 4, 3, source=15.0, shared=n)
        for n in (1, 15, 75, 150)
    },
    "1 of 30 uneven pictures in both benchmarks": _shape(
        points, 2, 3, sizes=uneven(30), source=15.0, shared=1
    ),
    # Distributions.
    "heavy tails": _shape(points, 8, 3, tails=heavy),
    "skewed": _shape(points, 8, 3, tails=skewed),
    **{
        f"right or wrong, {100 * p:.0f} % right, {s} seeds": _shape(
            graded, 27, s, num_items=200, grade=right(p), seed=0.05 * (s > 1)
        )
        for p, s in ((0.8, 2), (0.8, 3), (0.97, 3), (0.5, 1))
    },
    **{
        f"VQA accuracy, {s} seeds": _shape(graded, 8, s, num_items=100, grade=vqa)
        for s in (1, 2, 3)
    },
    "overlaps": _shape(graded, 8, 3, num_items=100, grade=iou),
    "captions": _shape(graded, 8, 3, num_items=100, grade=cider, is_percentage=False),
    "rare losses": _shape(graded, 8, 3, num_items=150, grade=rare_losses),
    "one training in five fails": _shape(graded, 8, 3, num_items=150, grade=collapse),
    "nearly the same answers": _shape(graded, 8, 3, num_items=200, grade=near_copies),
}
"""Name -> shape of study."""
