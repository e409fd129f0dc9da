"""Fuzzes every reader of bytes: each odd input is read, or refused in one clear line.

    python -m tests.fuzz.run [--inputs 100000] [--seed 0] [--targets npz,dataset] [--show 3]

Odd inputs are made from whole ones, always the same ones for a seed. A process of its own reads
those of a target, under limits, so that a crash, a hang or absurd memory is seen and counted:

    ok        it was read
    refused   an error that this project raises, of a type that callers expect: one short line,
              which names the file
    unclean   any other error, such as one in Python's own words
    hang      more than `CPU_S` of processor time, or `WALL_S` in all
    memory    more than `MEMORY_MB` beyond what the reader had before
    crash     the process died
"""

import argparse
import collections
import dataclasses
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from infra.errors import one_line_message
from tests.fuzz.targets import TARGETS, Reader, Target

CPU_S, WALL_S = 20, 180.0
"""Limits for one input [s]. Only processor time is short: a busy machine makes no hang."""

MEMORY_MB = 300
"""Most memory that one input may take [MB]."""

_ROOT = Path(__file__).parents[2]
_ROOMS = ("flows", "infra", "model", "parcel", "pipelines")
_OURS = tuple(str(_ROOT / room) for room in _ROOMS)
READY = "ready"

OUTCOMES = ("ok", "refused", "unclean", "hang", "memory", "crash")


@dataclasses.dataclass(kw_only=True)
class Tally:
    """What became of the inputs of one target.

    Attributes:
      counts: outcome -> inputs.
      kinds: an outcome that is not clean, and where -> inputs.
      first: the same -> number of the first such input, and its error.
    """

    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    kinds: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    first: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def unclean(self) -> int:
        """Inputs that were neither read nor refused in one clear line."""
        return sum(self.kinds.values())

    def add(self, number: int, outcome: str, place: str, message: str) -> None:
        """Counts an input."""
        self.counts[outcome] += 1
        if outcome not in ("ok", "refused"):
            kind = f"{outcome}: {place}"
            self.kinds[kind] += 1
            self.first.setdefault(kind, f"#{number}: {message}")


def fuzz(target: Target, num: int, seed: int, cpu_s: float = CPU_S) -> Tally:
    """Returns what became of `num` odd inputs of a target, each within `cpu_s` [s]."""
    tally, start = Tally(), 0
    # Not forked from here: this process may have threads, of JAX for one.
    context = multiprocessing.get_context("spawn")
    while start < num:
        ours, its = context.Pipe()
        process = context.Process(target=_read_all, args=(its, target, start, num, seed, cpu_s))
        process.start()
        its.close()
        try:
            start = _follow(ours, process, tally, start, num)
        finally:
            process.kill()
            process.join()
    return tally


def _follow(
    ours: Connection,
    process: BaseProcess,
    tally: Tally,
    start: int,
    num: int,
) -> int:
    """Counts inputs until the process is through or died; returns the next input's number."""
    ready = False
    for number in range(start, num):
        try:
            if not ready:
                ready = ours.recv() == READY
            if not ours.poll(WALL_S):
                tally.add(number, "hang", "it waits", "")
                return number + 1
            tally.add(number, *ours.recv())
        except EOFError:
            if not ready:
                raise RuntimeError("the fuzzed process did not start") from None
            process.join()
            outcome = "hang" if process.exitcode == -signal.SIGPROF else "crash"
            tally.add(number, outcome, f"exit {process.exitcode}", "")
            return number + 1
    return num


def _read_all(
    its: Connection, target: Target, start: int, num: int, seed: int, cpu_s: float
) -> None:
    """Reads inputs `start` to `num` of a target, and sends what became of each."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    with tempfile.TemporaryDirectory() as folder:
        readers = target(Path(folder))
        # Whole inputs first. They are read, or nothing is tried here; and what is imported and
        # compiled at the first reading is no input's memory.
        for reader in readers:
            reader.read(reader.whole)
        its.send(READY)
        for number in range(start, num):
            # From a text: the same on every Python, and another for each input, target and seed.
            rng = random.Random(f"{seed} {target.__name__} {number}")
            reader = rng.choice(readers)
            its.send(read_odd(reader, reader.change(rng, reader.whole), cpu_s))


def read_odd(reader: Reader, data: bytes, cpu_s: float = CPU_S) -> tuple[str, str, str]:
    """Reads an input, and returns its outcome, the place of an error, and its message."""
    before = _status("VmData")
    limit = (before + MEMORY_MB * 1000) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
    # The kernel ends a process that computes for longer, whatever library it is in.
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        reader.read(data)
    except MemoryError as error:
        return "memory", _place(error)[1], str(error)[:200]
    except Exception as error:
        is_ours, place = _place(error)
        message = one_line_message(error)  # As people see it.
        room = type(error).__module__.partition(".")[0]
        is_expected = isinstance(error, ValueError | OSError) or room in _ROOMS
        is_clear = is_ours and is_expected and reader.named in message
        return (
            "refused" if is_clear else "unclean",
            place,
            f"{type(error).__name__}: {message[:200]!r}",
        )
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return "ok", "", ""


def _place(error: BaseException) -> tuple[bool, str]:
    """Returns whether the project raised an error, and the last place in the project before it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(_OURS)]
    place = f"{ours[-1].filename.removeprefix(f'{_ROOT}/')}:{ours[-1].lineno}" if ours else "?"
    is_ours = bool(ours) and frames[-1] == ours[-1] and (ours[-1].line or "").startswith("raise")
    return is_ours, f"{type(error).__name__} at {place}"


def _status(name: str) -> int:
    """Returns a figure of this process from proc(5) [kB]."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def shares(targets: Sequence[str], num: int) -> Iterator[tuple[str, int]]:
    """Yields each target and its share of `num` inputs."""
    for position, name in enumerate(targets):
        yield name, num // len(targets) + (position < num % len(targets))


def main(words: Sequence[str] | None = None) -> int:
    """Prints a table of what became of the inputs; returns 1 if one was not clean."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--inputs", type=int, default=100_000, help="number of inputs, over all targets"
    )
    parser.add_argument("--seed", type=int, default=0, help="other inputs")
    parser.add_argument("--targets", default=",".join(TARGETS), help="some of the targets")
    args = parser.parse_args(words)
    from perf.timing import aligned_table

    rows, lines, total = [], [], 0
    for name, num in shares(args.targets.split(","), args.inputs):
        started = time.monotonic()
        tally = fuzz(TARGETS[name], num, args.seed)
        total += tally.unclean
        seconds = f"{time.monotonic() - started:.0f}"
        rows.append([name, num, *(tally.counts[outcome] for outcome in OUTCOMES), seconds])
        lines += [f"{name}: {n} x {k}, {tally.first[k]}" for k, n in tally.kinds.most_common()]
    print(aligned_table(["target", "inputs", *OUTCOMES, "s"], rows), "", *lines, sep="\n")
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
