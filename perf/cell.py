"""Bytes that cells of a study move between a bucket and a machine, against their inputs.

    python -m perf.cell tests/e2e/tiny.yaml --cells 4

The study is made. Then the artifacts of its first transfers and the table are deleted from the
bucket, and a machine with an empty disk runs the study again, which makes just these.
"""

import argparse
import collections
import json
import subprocess
import tempfile
from pathlib import Path

from perf.store import PARCEL, place
from perf.timing import table
from tests.gcs.server import GCS

BUCKET = "testing"


def take_out(gcs: GCS, count: int) -> tuple[dict[str, dict], list[dict]]:
    """Deletes the first transfers of a study from its bucket, their evaluations, and the table.

    Returns:
      The manifests that were there, by key, and those of the transfers and their evaluations.
    """
    objects = gcs.store.bucket(BUCKET).objects
    found = {
        (made := json.loads(there.data))["key"]: made
        for name, there in sorted(objects.items())
        if name.startswith("manifests/")
    }
    trained = [made for made in found.values() if made["name"].startswith("transfer ")][:count]
    keys, cells = {made["key"] for made in trained}, list(trained)
    for made in found.values():
        if keys & {read["key"] for read in made["inputs"].values()}:
            cells.append(made)
    gone = [made["key"] for made in cells if made["kind"] != "results"]
    gone += [made["key"] for made in found.values() if made["kind"] == "results"]
    for name in list(objects):
        if any(key in name for key in gone):
            gcs.store.delete(BUCKET, name)
    return found, [made for made in cells if made["kind"] != "results"]


def size_of(made: dict) -> int:
    """Returns the size of an artifact [bytes]."""
    return sum(file["size"] for file in made["files"].values())


def measure(config: list[str], count: int, folder: Path) -> str:
    """Returns the table of one study, after some of its transfers are made again."""
    with place("bucket", folder) as (env, gcs):
        assert gcs is not None

        def run(state: str) -> None:
            there = {**env, "PARCEL_STATE": str(folder / state)}
            with (folder / "log").open("a") as log:
                subprocess.run(
                    [PARCEL, "run", *config], env=there, stdout=log, stderr=log, check=True
                )

        run("first")
        found, cells = take_out(gcs, count)
        gcs.clear()
        run("second")
        moved = gcs.tally.moved()
        names = {made["key"]: made["name"] for made in found.values()}
    of: collections.Counter[tuple[str, str]] = collections.Counter()
    sent: collections.Counter[str] = collections.Counter()
    for (name, way), size in moved.items():
        key = name.split("/")[1] if name.startswith(("artifacts/", "scratch/")) else ""
        part = f"{name.split('/')[0]} {names.get(key, '')}" if name else "listings"
        of[part.strip(), way] += size
        if name.startswith("artifacts/") and way == "out":
            sent[key] += size
    inputs = {
        read["key"]: size_of(found[read["key"]])
        for made in cells
        for read in made["inputs"].values()
        if read["key"] not in [cell["key"] for cell in cells]
    }
    outputs = sum(map(size_of, cells))
    rows = []
    for part in sorted({part for part, _ in of}):
        rows.append([part, *(f"{of[part, way] / 1e3:.1f}" for way in ("out", "in"))])
    totals = [sum(n for (_, w), n in of.items() if w == way) for way in ("out", "in")]
    rows.append(["all", *(f"{total / 1e3:.1f}" for total in totals)])
    size, read_of_inputs = sum(inputs.values()), sum(sent[key] for key in inputs)
    return "\n".join(
        [
            table(["of", "read [kB]", "written [kB]"], rows),
            f"inputs of {count} transfers and their {len(cells) - count} evaluations: "
            f"{size / 1e3:.1f} kB, read {read_of_inputs / size:.2f} times",
            f"read besides: {(totals[0] - read_of_inputs) / 1e3:.1f} kB",
            f"their artifacts: {outputs / 1e3:.1f} kB; written {totals[1] / outputs:.2f} of that",
        ]
    )


def main() -> None:
    """Measures the study that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", nargs="*", help="as `parcel run` takes it; none is the demo")
    parser.add_argument("--cells", type=int, default=1, help="transfers that are made again")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(measure(asked.config, asked.cells, Path(folder)))


if __name__ == "__main__":
    main()
