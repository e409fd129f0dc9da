"""Cost of a study on a disk, and in a bucket of the tests' Cloud Storage on the loopback.

    python -m perf.store --rounds 5                          # the demo
    python -m perf.store tests/e2e/tiny.yaml --against ../before

The places take turns. In a round, each makes the study in a fresh store, then runs it again
(`--again` times), which finds everything made.
`--against` adds another checkout, on the disk. Processor time is that of all processes that the
command starts, so the bucket's server does not count.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from perf.timing import table
from perf.usage import Usage, run_counted
from tests.gcs.server import GCS

PARCEL = str(Path(sys.executable).with_name("parcel"))
_BUCKET = "testing"
HERE = str(Path(__file__).parents[1])


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


def measure(
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
    yield table(header, rows)


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
        for line in measure(config, kinds, asked.rounds, asked.again, Path(folder)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
