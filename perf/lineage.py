"""How long it takes to follow a lineage: down from a cell and a table, up from a sample.

    python -m perf.lineage --seeds 100

Down: `parcel lineage trace` runs as a command on the demo with that many seeds and 21 budgets; the
store has a manifest of every step and no data. Up: the loader's own order gives the steps of a
training that saw one record, for parts of several lengths.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from flows.lineage.runs import note_run
from flows.study.graph import Graph
from infra.store.manifest import Manifest
from infra.store.store import Store
from model.data.order import Order
from perf.lookup import graph_with, objects
from perf.store import HERE, PARCEL
from perf.timing import table
from perf.usage import run_counted

CELL = "chartqa/parcel/64"


def lay_out(graph: Graph, folder: Path) -> None:
    """Fills a folder with a store that has a manifest of every step, and the record of a run."""
    results = ""
    environment = {"packages": {f"package-{i}": "1.0" for i in range(14)}, "hardware": {"cpus": 2}}
    for name, data in objects(graph, folder):
        if not name.startswith("manifests/"):
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        manifest = Manifest.from_json(data.decode())
        path.write_text(json.dumps(json.loads(data) | {"environment": environment}))
        results = manifest.key if manifest.kind == "results" else results
    store = Store(folder)
    note_run(store, {"name": "demo"}, results, artifacts=[*store.keys()], flow_run_id="", failed=[])


def down(seeds: int, folder: Path) -> Iterator[list[str]]:
    """Yields a row for a cell's trace, and one for the whole table's.

    Args:
      seeds: number of seeds of the demo.
      folder: an empty folder.
    """
    graph = graph_with(seeds)
    lay_out(graph, folder / "store")
    env = {**os.environ, "PYTHONPATH": HERE}
    for what, words in (("cell", ["--cell", CELL]), ("table", [])):
        command = [PARCEL, "lineage", "trace", "demo", *words, "--samples", "0"]
        log = folder / f"{what}.txt"
        used = run_counted([*command, "--store", str(folder / "store")], env, log, folder)
        lines = len(log.read_text().splitlines())
        yield [what, str(len(graph.cells)), str(lines), f"{used.wall:.2f}", f"{used.cpu:.2f}"]


def up(length: int, draws: int) -> list[str]:
    """Returns a row: a part's length, and the time to find the draws of one record.

    Args:
      length: length of the part [records].
      draws: number of examples that the training draws from it.
    """
    order = Order(length, 32, 0)
    clock = time.process_time()
    found = 0
    for visit in order.visits(length // 3):
        if visit >= draws:
            break
        found += 1
    return [f"{length:,}", f"{draws:,}", str(found), f"{time.process_time() - clock:.2f}"]


def main(words: Sequence[str] | None = None) -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--draws", type=int, default=1_000_000)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1000, 4000, 100_000, 1_000_000])
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        rows = list(down(asked.seeds, Path(folder)))
    print(table(["trace of a", "cells", "lines", "wall [s]", "processor [s]"], rows))
    found = [up(length, asked.draws) for length in asked.lengths]
    print(table(["records", "draws", "of one record", "processor [s]"], found))


if __name__ == "__main__":
    main()
