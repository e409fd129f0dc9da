"""How often the report's 95 % intervals contain the truth, in simulated studies where it is known.

    python -m perf.intervals

Two methods are compared on one benchmark or several, with some seeds. A study draws its seeds, its
sources (pictures) with one to three questions each, and noise; the true difference of the methods
is always 2 points. A spread is the standard deviation of the difference [points]: of a seed's mean,
of a source, of a source with one seed, and of a single answer.

covered    share of studies whose interval contains the 2 points
t alone    the same for Student's t over the seeds' means, which ignores sources
width      mean width of the interval [points]
"""

import argparse
import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from scipy import special

from flows.report.interval import PairedScores, estimate_interval
from flows.report.spread import LEVEL
from perf.timing import table

HEADER = ["spread", "benchmarks", "pretrainings", "seeds", "covered", "t alone", "width"]
TRUTH = 2.0
SOURCES = 100
"""Number of sources of each benchmark."""


@dataclasses.dataclass(frozen=True)
class Spread:
    """Standard deviations of a difference [points]."""

    name: str
    seed: float
    source: float
    both: float
    answer: float
    pretraining: float = 0.0


SPREADS = (
    Spread("of seeds", 2.0, 1.0, 5.0, 10.0),
    Spread("of sources", 0.5, 20.0, 5.0, 10.0),
    Spread("of both", 1.0, 10.0, 10.0, 20.0),
    Spread("of answers", 0.0, 0.0, 0.0, 40.0),
    Spread("of pretrainings", 1.0, 10.0, 10.0, 20.0, pretraining=1.0),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Design:
    """Size of a study; benchmarks share trainings if there are fewer trainings than benchmarks."""

    benchmarks: int = 1
    trainings: int = 1
    pretrainings: int = 1
    seeds: int = 3


DESIGNS = (
    *(Design(seeds=seeds) for seeds in (3, 5, 10)),
    *(Design(benchmarks=8, seeds=seeds) for seeds in (3, 5)),
    *(Design(benchmarks=27, trainings=20, seeds=seeds) for seeds in (3, 5)),
)
NESTED = (Design(pretrainings=3), Design(benchmarks=8, trainings=4, pretrainings=5))


@dataclasses.dataclass(frozen=True)
class Coverage:
    """Shares of studies whose interval, and whose t, contains the truth; mean width [points]."""

    covered: float
    covered_by_t: float
    width: float


def simulate(spread: Spread, design: Design, studies: int) -> Coverage:
    """Returns the coverage of the intervals of simulated studies, the same in each call."""
    rng = np.random.default_rng(0)
    numbers = [p for p in range(design.pretrainings) for _ in range(design.seeds)]
    held, held_by_t, widths = [], [], []
    for _ in range(studies):
        rows = _draw(rng, spread, design, numbers)
        found = estimate_interval(rows, numbers)
        assert found.low is not None
        assert found.high is not None
        held.append(found.low <= TRUTH <= found.high)
        widths.append(found.high - found.low)
        means = np.mean([row.values for row in rows], axis=0)
        half = special.stdtrit(len(means) - 1, 1 - LEVEL / 2) * means.std(ddof=1)
        held_by_t.append(abs(means.mean() - TRUTH) <= half / np.sqrt(len(means)))
    return Coverage(*(float(np.mean(found)) for found in (held, held_by_t, widths)))


def _draw(
    rng: np.random.Generator, spread: Spread, design: Design, numbers: Sequence[int]
) -> list[PairedScores]:
    normal = functools.partial(rng.normal, 0.0)
    seeds = len(numbers)
    shared = normal(spread.pretraining, design.pretrainings)[numbers]
    own = normal(spread.seed, (design.trainings, seeds))
    rows = []
    for number in range(design.benchmarks):
        training = number % design.trainings
        counts = rng.integers(1, 4, SOURCES)
        of_source = normal(spread.source, SOURCES) + normal(spread.both, (seeds, SOURCES))
        scores = np.repeat(of_source, counts, axis=1) + normal(spread.answer, (seeds, counts.sum()))
        scores += TRUTH + (shared + own[training])[:, None]
        ends = np.cumsum(counts)
        items = tuple(
            {
                f"{number}/{source}": tuple(run[end - count : end])
                for source, (count, end) in enumerate(zip(counts, ends, strict=True))
            }
            for run in scores.tolist()
        )
        values = tuple(scores.mean(axis=1).tolist())
        rows.append(PairedScores.of(values, items, str(training)))
    return rows


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--studies", type=int, default=2000)
    args = parser.parse_args(words)
    rows = []
    for spread in SPREADS:
        for design in NESTED if spread.pretraining else DESIGNS:
            found = simulate(spread, design, args.studies // (1 if design.benchmarks == 1 else 2))
            shares = [f"{found.covered:.1%}", f"{found.covered_by_t:.1%}", f"{found.width:.2f}"]
            shape = [str(getattr(design, n)) for n in ("benchmarks", "pretrainings", "seeds")]
            rows.append([spread.name, *shape, *shares])
    print(table(HEADER, rows))


if __name__ == "__main__":
    main()
