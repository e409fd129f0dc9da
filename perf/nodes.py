"""Cost of a second machine: a study on two nodes of one core against one node of two.

    python -m perf.nodes [--rounds 3]

The nodes share nothing but an emulated bucket (see `tests/nodes`); needs root for its namespaces.
Both setups do the same work on the same number of cores, so the difference is the cost of the
second node.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from tests.e2e.conftest import CONFIG
from tests.nodes.machines import CHECKOUT, VENV, Machines

_STUDY = (
    "num_seeds=1",
    "methods=[vanilla,m3]",
    "compute.cpus_per_stage=1",
    "compute.cpus_per_cell=1",
)


def main() -> None:
    """Prints the time of each run [s], and the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    took: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for nodes, times in took.items():
            times.append(_seconds(nodes))
            print(f"{nodes} node(s) of {2 // nodes} core(s): {times[-1]:.1f} s", flush=True)
    one, two = (statistics.median(took[nodes]) for nodes in (1, 2))
    print(f"two nodes / one, medians of {rounds}: {two / one:.3f}")


def _seconds(nodes: int) -> float:
    with tempfile.TemporaryDirectory() as folder, Machines(nodes, Path(folder), 2 // nodes) as made:
        log = Path(folder) / "run.log"
        command = ["env", f"PYTHONPATH={CHECKOUT}", str(VENV / "bin" / "parcel"), "run", CONFIG]
        with log.open("w") as out:
            began = time.monotonic()
            run = made.popen(*command, "compute.ray_address=auto", *_STUDY, on=made.head, out=out)
            if run.wait():
                raise SystemExit(log.read_text()[-3000:])
            return time.monotonic() - began


if __name__ == "__main__":
    main()
