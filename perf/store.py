"""Cost of a study on a disk, and in a bucket of the tests' Cloud Storage on the loopback.

    python -m perf.store --rounds 5                          # the demo
    python -m perf.store tests/e2e/tiny.yaml --against ../before

The places take turns. In a round, each makes the study in a fresh store, then runs it again
(`--again` times), which finds everything made.
`--against` adds another checkout, on the disk. Processor time is that of all processes that the
command starts, also of those that outlive it; the bucket's server does not count. A control group
counts it: the usage that `wait` returns would miss some, as Ray's raylet never waits for its
workers.
"""

import argparse
import contextlib
import dataclasses
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from perf.timing import aligned_table
from tests.gcs.server import GCS

PARCEL = str(Path(sys.executable).with_name("parcel"))
_BUCKET = "testing"
HERE = str(Path(__file__).parents[1])

_LOOK_EVERY = 0.05
"""Time between two checks whether the last process has ended [s]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Usage:
    """Cost of one run of a command.

    Attributes:
      wall: time until the command itself ended [s].
      cpu: processor time of it and of all processes it started, until the last one ended [s].
    """

    wall: float
    cpu: float


@contextlib.contextmanager
def place(kind: str, folder: Path) -> Iterator[tuple[Mapping[str, str], GCS | None]]:
    """Yields the environment of a run in a fresh store, and the bucket's server, if there is one.

    Args:
      kind: "disk", "bucket", or the folder of another checkout, whose store is on the disk.
      folder: an empty folder for all that the run writes.
    """
    own = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "PARCEL_"))}
    own |= {"PYTHONPATH": HERE, "PREFECT_HOME": str(folder / "prefect")}
    if kind != "bucket":
        checkout = {} if kind == "disk" else {"PYTHONPATH": kind}
        yield own | {"PARCEL_STORE": str(folder / "store")} | checkout, None
        return
    with GCS() as gcs:
        gcs.bucket(_BUCKET)
        there = {"PARCEL_STORE": f"gs://{_BUCKET}", "PARCEL_STATE": str(folder / "state")}
        yield own | gcs.environment | there, gcs


def measure_stores(
    config: list[str], kinds: list[str], rounds: int, again: int, folder: Path
) -> Iterator[str]:
    """Yields a line per run, then the table of medians.

    Args:
      config: arguments of `parcel run`.
      kinds: kinds of places; see `place`.
      rounds: number of studies that each place makes.
      again: number of further runs of each study, which find it made.
      folder: folder for the stores, one at a time, and for the runs' output.
    """
    found: dict[tuple[str, str], list[Usage]] = {}
    for turn in range(rounds):
        for kind in sorted(kinds, reverse=turn % 2 == 1):
            work = folder / "work"
            with place(kind, work) as (env, gcs):
                for what in ("made", *["found"] * again):
                    work.mkdir(exist_ok=True)
                    used = run_counted([PARCEL, "run", *config], env, folder / "log", work)
                    found.setdefault((kind, what), []).append(used)
                    counts = gcs.requests().values() if gcs else ()
                    asked = {
                        name: sum(count.get(name, 0) for count in counts)
                        for name in ("requests", "bytes_in", "bytes_out")
                    }
                    moved = (asked["bytes_in"] + asked["bytes_out"]) / 1e6
                    sent = f", {asked['requests']} requests, {moved:.1f} MB" if gcs else ""
                    yield f"{kind} {what}: {used.wall:.1f} s, processor {used.cpu:.1f} s{sent}"
                    if gcs:
                        gcs.clear()
            shutil.rmtree(work)
    rows = []
    for (kind, what), runs in found.items():
        base = found["disk", what]
        wall, cpu = (statistics.median(getattr(r, x) for r in runs) for x in ("wall", "cpu"))
        ratios = [
            statistics.median(
                getattr(a, x) / getattr(b, x) for a, b in zip(runs, base, strict=True)
            )
            for x in ("wall", "cpu")
        ]
        rows.append([f"{kind} {what}", f"{wall:.1f}", f"{cpu:.1f}", *(f"{r:.3f}" for r in ratios)])
    header = ["store", "wall [s]", "processor [s]", "wall / disk", "processor / disk"]
    yield aligned_table(header, rows)


def run_counted(command: Sequence[str], env: Mapping[str, str], log: Path, folder: Path) -> Usage:
    """Runs a command and returns what it cost.

    Args:
      command: command to run.
      env: its environment.
      log: file that its output is appended to.
      folder: where it runs; `python -m` looks for modules there first.

    Raises:
      RuntimeError: if the command fails, or no control group can be made.
    """
    with _control_group() as group, log.open("a") as out:
        began = time.monotonic()
        # A shell enters the group and then becomes the command, so that all it starts is counted.
        enter = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
        code = subprocess.run(
            [*enter, *command],
            env=env,
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
        wall = time.monotonic() - began
        if code:
            raise RuntimeError(
                f"{' '.join(command)} ended with code {code}: {log.read_text()[-2000:]}"
            )
        while "populated 1" in (group / "cgroup.events").read_text():
            time.sleep(_LOOK_EVERY)
        used = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
        return Usage(wall=wall, cpu=int(used["usage_usec"]) / 1e6)


@contextlib.contextmanager
def _control_group() -> Iterator[Path]:
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    places = [Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"]
    if not places or not os.access(places[0], os.W_OK):
        raise RuntimeError(
            "processor time is counted by a control group (cgroup v2), for which this needs root."
        )
    group = places[0] / f"usage-{uuid.uuid4().hex}"
    group.mkdir()
    try:
        yield group
    finally:
        with contextlib.suppress(OSError):  # A command that failed may have left processes in it.
            group.rmdir()


def main() -> None:
    """Measures what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", nargs="*", help="as `parcel run` takes it; none is the demo")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--again", type=int, default=1)
    parser.add_argument("--places", nargs="+", default=["disk", "bucket"])
    parser.add_argument("--against", help="another checkout, on the disk")
    asked = parser.parse_args()
    config = [str(Path(word).resolve()) if Path(word).exists() else word for word in asked.config]
    kinds = [*asked.places, *([str(Path(asked.against).resolve())] if asked.against else [])]
    with tempfile.TemporaryDirectory() as folder:
        for line in measure_stores(config, kinds, asked.rounds, asked.again, Path(folder)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
