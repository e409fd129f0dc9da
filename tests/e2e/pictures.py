"""Takes the screenshots of docs/pictures: `python -m tests.e2e.pictures STORE FOLDER`.

All of them show the demo, which must have run in STORE; a copy of the store is served.
"""

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from flows.lookup.runs import find_run
from infra.store.store import Store
from tests.e2e.conftest import Served, parcel, plain, serving

_START_TIMEOUT = 600.0
"""Longest wait for the run that the start page shows to train [s]."""


def take_pictures(store: Path, folder: Path) -> None:
    """Takes every screenshot of a store's demo.

    Args:
      store: a store in which the demo ran to its end, served from a server of its own.
      folder: where the PNG files go.
    """
    folder.mkdir(parents=True, exist_ok=True)
    profile = store.parent / "profile"
    record = find_run(Store(store), "demo")
    run = record["run"]
    with serving(store) as served:

        def take(name: str, path: str, height: int = 1100, width: int = 1400, dark: bool = False):
            picture = folder / f"{name}.png"
            served.browse(path, profile, screenshot=picture, size=(width, height), dark=dark)

        # In Prefect's own UI: the run, the table, the lineage of the table, the form of a sweep.
        take("run", f"/v2/runs/flow-run/{record['flow_run_id']}", 1300)
        results = _artifact(served, "results-demo")
        take("results", f"/v2/artifacts/artifact/{results}", 1300)
        take("results_800_dark", f"/v2/artifacts/artifact/{results}", 1300, 800, dark=True)
        take(
            "lineage", f"/v2/artifacts/artifact/{_artifact(served, 'lineage-' + record['results'])}"
        )
        form = served.ask("/deployments/name/sweep/sweep", method="GET")["id"]
        take("form_sweep", f"/v2/deployments/deployment/{form}/run", 1500)

        # Beside it: a cell, its items, a comparison.
        take("cell", f"/parcel/cell/{run}/chartqa/parcel/64", 900)
        take("items", f"/parcel/items/{run}/chartqa?a=parcel@64&b=vanilla@256")
        sides = "&".join(f"side={run}/chartqa/{method}/64" for method in ("parcel", "m3"))
        take("compare", f"/parcel/compare?{sides}", 1500)

        # A morning: the demo of yesterday, tonight's firing, and a fourth seed that trains now.
        nightly = ("--add-seeds", "1", "--max-seeds", "10", "--cron", "0 20 * * *")
        done = parcel(store, "sweep", "demo", *nightly)
        assert done.returncode == 0, done.stderr
        fourth = served.start("sweep/sweep", study="demo", add={"add_seeds": 1, "max_seeds": 10})
        _await_training(served, profile)
        take("start", "/parcel/", 1000)
        cancel = json.dumps({"state": {"type": "CANCELLING"}, "force": True}).encode()
        served.ask(f"/flow_runs/{fourth}/set_state", cancel)


def _artifact(served: Served, key: str) -> str:
    asked = {"artifacts": {"key": {"any_": [key]}}, "sort": "CREATED_DESC", "limit": 1}
    return served.ask("/artifacts/filter", json.dumps(asked).encode())[0]["id"]


def _await_training(served: Served, profile: Path) -> None:
    until = time.monotonic() + _START_TIMEOUT
    while "loss " not in plain(served.browse("/parcel/", profile)):
        assert time.monotonic() < until, "no step trains"
        time.sleep(2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "store"
        shutil.copytree(sys.argv[1], copy)
        take_pictures(copy, Path(sys.argv[2]).absolute())
