"""How long a sweep takes on a few slots, against the time that its cells take.

    python -m perf.makespan [CONFIG] [key=value …]        # the demo: 24 transfers

A study is made up to its intermediaries (`parcel train`); then `parcel run` makes its transfers,
and is timed. The ideal is the best that the same slots could do with cells of these times, which
are measured while the other slots are busy: their sum over the number of slots, or the longest
cell. The difference is the start of Ray and its workers, imports, queues, and idle slots at the
end.
"""

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from infra.prefect import journal
from infra.store.store import Store
from perf.store import PARCEL, place
from perf.timing import table


def cells_of(store: Store) -> dict[str, float]:
    """Returns the time of each transfer with its evaluations, by its name [s]."""
    made = [
        artifact.manifest
        for kind in ("checkpoint", "predictions")
        for artifact in store.artifacts(kind)
    ]
    cells = {m.key: m.name for m in made if m.name.startswith("transfer ")}
    times = dict.fromkeys(cells.values(), 0.0)
    for manifest in made:
        read = manifest.inputs.get("checkpoint")
        owner = cells.get(manifest.key) or (cells.get(read.key) if read else None)
        if owner is not None:
            times[owner] += manifest.seconds
    return times


def makespan_of(store: Store, cells: Sequence[str]) -> float:
    """Returns the time from the start of the first cell to the end of the last one [s]."""
    records = [journal.read(path) for path in (store.state / "runs").rglob("*.jsonl")]
    nodes = [
        node
        for record in records
        if record is not None
        for node in record.nodes.values()
        if node.name in cells and node.outcome == "made"
    ]
    ends = [node.ended for node in nodes if node.ended]
    begins = [node.started for node in nodes if node.started]
    if len(ends) != len(cells):
        raise RuntimeError(f"{len(ends)} of {len(cells)} cells were made.")
    return (max(ends) - min(begins)).total_seconds()


def measure(words: Sequence[str], slots: int, folder: Path) -> list[list[str]]:
    """Returns the rows of the table.

    Args:
      words: arguments as for `parcel run`.
      slots: cores of the local cluster; a cell takes one of them.
      folder: folder to create.
    """
    own = ["compute.cpus_per_cell=1", f"compute.num_cpus={slots}"]
    folder.mkdir()
    with place("disk", folder) as (env, _), (folder / "log").open("w") as log:

        def run(verb: str) -> float:
            began = time.monotonic()
            command = [PARCEL, verb, *words, *own]
            done = subprocess.run(command, env=env, stdout=log, stderr=log, check=False)
            if done.returncode:
                raise RuntimeError((folder / "log").read_text()[-2000:])
            return time.monotonic() - began

        run("train")
        whole = run("run")
    store = Store(folder / "store")
    cells = cells_of(store)
    ideal = max(sum(cells.values()) / slots, max(cells.values()))
    makespan = makespan_of(store, list(cells))
    return [
        [f"{len(cells)} cells, added up", f"{sum(cells.values()):.1f}", ""],
        [f"ideal on {slots} slots", f"{ideal:.1f}", "1.00"],
        ["from the first begin to the last end", f"{makespan:.1f}", f"{makespan / ideal:.2f}"],
        ["the whole command", f"{whole:.1f}", f"{whole / ideal:.2f}"],
    ]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", nargs="*", help="as `parcel run` takes it; none is the demo")
    parser.add_argument("--slots", type=int, default=min(2, len(os.sched_getaffinity(0))))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(asked.config, asked.slots, Path(folder) / "work")
    print(table(["", "time [s]", "/ ideal"], rows))


if __name__ == "__main__":
    main()
