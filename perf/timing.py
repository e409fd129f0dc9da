"""Times of programs that take turns, so that other load on the machine affects all alike."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import jax


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Times of one program's runs.

    Attributes:
      wall: median wall time [s].
      cpu: median of this process's processor time [s]; other load hardly affects it.
      noise: half the distance between the quartiles of the wall time, over its median.
    """

    wall: float
    cpu: float
    noise: float


def time_in_turns(programs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Timing]:
    """Returns the times of each program, run once a round, in turns that alternate in order.

    Args:
      programs: each returns arrays, which are waited for; its first run is not counted.
      rounds: counted runs of each.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}.")
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for turn in range(rounds + 1):
        for name in sorted(programs, reverse=turn % 2 == 1):
            wall, cpu = time.perf_counter(), time.process_time()
            jax.block_until_ready(programs[name]())
            runs[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {name: _timing_of_runs(counted[1:]) for name, counted in runs.items()}


def _timing_of_runs(runs: Sequence[tuple[float, float]]) -> Timing:
    walls, cpus = zip(*runs, strict=True)
    middle = statistics.median(walls)
    spread = 0.0
    if len(walls) > 1:
        low, _, high = statistics.quantiles(walls, n=4, method="inclusive")
        spread = (high - low) / 2
    return Timing(wall=middle, cpu=statistics.median(cpus), noise=spread / middle)


def aligned_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns rows as aligned text, the first column to the left."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for first, *rest in cells:
        padded = [cell.rjust(w) for cell, w in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *padded]).rstrip())
    return "\n".join(lines)
