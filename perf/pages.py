"""How long our own pages, beside Prefect's, take to open, with many cells in the store.

    python -m perf.pages --seeds 32

A synthetic study of 20 benchmarks, four methods and five budgets, with real manifests, records and
predictions of 12 items each: 10,240 cells for 32 seeds. Each page is requested twice from a new
server; the time is until its HTML has arrived.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from flows.pages.app import pages_of
from infra.prefect.server import PAGES
from infra.store.store import Store
from perf.timing import table
from tests.flows.pages.studies import write_study


def measure(store: Store) -> Iterator[list[str]]:
    """Yields a row per page: size [kB], times of the first and of the second answer [s]."""
    client = TestClient(Starlette(routes=[Mount(PAGES, pages_of(store.uri))]))
    dataset, predictions = store.keys("dataset")[0], store.keys("predictions")[0]
    for name, path in {
        "studies": "",
        "search": "?find=predictions-0",
        "table": "results/toy",
        "cell": "cell/toy/bench07/parcel/64",
        "items, all": "items/toy/bench07?a=parcel@64&b=mqt@64",
        "items, changed": "items/toy/bench07?a=parcel@64&b=mqt@64&show=changed",
        "item": "item/toy/bench07?id=bench07/003",
        "artifact: dataset": f"artifact/{dataset}",
        "artifact: predictions": f"artifact/{predictions}",
        "artifact: results": f"artifact/{store.keys('results')[0]}",
    }.items():
        times, size = [], 0
        for _ in range(2):
            began = time.perf_counter()
            answer = client.get(f"{PAGES}/{path}")
            times.append(time.perf_counter() - began)
            assert answer.status_code == 200, path
            size = len(answer.content)
        yield [name, f"{size / 1e3:.0f}", *(f"{one:.2f}" for one in times)]


def study_of(folder: Path, num_seeds: int) -> Store:
    """Returns a store with the study; it is written if the store has none yet."""
    store = Store(folder)
    if not store.keys("results"):
        write_study(
            store,
            benchmarks=[f"bench{i:02}" for i in range(20)],
            methods=("vanilla", "parcel", "mqt", "m3"),
            budgets=(16, 36, 64, 144, 256),
            seeds=range(100, 100 + num_seeds),
            num_items=12,
        )
    return store


def main() -> None:
    """Measures what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=32, help="320 cells each")
    parser.add_argument("--store", type=Path, help="a store that this wrote before")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = study_of(asked.store or Path(folder), asked.seeds)
        print(f"{len(store.keys('predictions'))} cells")
        print(table(["page", "size [kB]", "first [s]", "again [s]"], list(measure(store))))
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB of memory at most")


if __name__ == "__main__":
    main()
