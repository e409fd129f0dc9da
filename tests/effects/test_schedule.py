"""A schedule that the clock fires, with nobody there."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.effects.product import PARCEL, SMALLEST, Served, environment, parcel, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

_PLANNED_WITHIN = 60.0
"""Longest time in which Prefect's scheduler plans the runs of a new schedule [s]."""
_FIRED_WITHIN = 180.0
"""Longest time in which a run begins that is due at the next minute, on a busy machine [s]."""
_RUN_WITHIN = 600.0
"""Longest time of a run of the smallest study, on a busy machine [s]."""


def test_a_run_that_the_clock_starts_makes_the_studys_table(served: Served):
    def fired() -> list[dict]:
        return [run for run in served.runs() if run["auto_scheduled"]]

    assert fired() == []
    words = ("--add-seeds", "1", "--max-seeds", "3", "--cron", "* * * * *")
    done = parcel(served.store, "sweep", SMALLEST, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("deployment sweep/sweep: fires at '* * * * *' UTC\n")
    set_at = time.monotonic()
    wait_for(fired, _PLANNED_WITHIN, lambda: parcel(served.store, "status").stdout)

    def first() -> dict | None:
        waits = ("Scheduled", "Pending", "Submitting", "Late")
        # On a busy machine the second may be due when the process of the first begins.
        begun = [run for run in fired() if run["state_name"] not in (*waits, "Skipped")]
        return begun[0] if begun else None

    run = wait_for(first, _FIRED_WITHIN, served.log.read_text)
    print(f"from the schedule to a run that the clock began: {time.monotonic() - set_at:.0f} s")
    print(f"from `parcel serve` to that: {time.monotonic() - served.began:.0f} s")
    assert parcel(served.store, "schedule", "stop", "smallest").returncode == 0

    def ended() -> dict | None:
        found = served.ask(f"/flow_runs/{run['id']}")
        return found if found["state_type"] in ("COMPLETED", "FAILED", "CRASHED") else None

    state = wait_for(ended, _RUN_WITHIN, served.log.read_text)["state"]
    assert state["type"] == "COMPLETED", state["message"]
    told = parcel(served.store, "status").stdout
    assert "smallest: complete" in told
    assert "server: " not in told  # Nothing failed in the background.


def test_a_second_serve_of_the_store_takes_nothing_from_the_first(served: Served, tmp_path: Path):
    done = subprocess.run(
        [PARCEL, "serve"], cwd=tmp_path, env=environment(served.store), capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout
    line = f"parcel: a `parcel serve` of this store runs already, {served.url}/parcel/: use that"
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1
    # Its form reads the studies of its own folder, as before.
    form = served.ask("/deployments/name/study/study")["id"]
    values = {"parameters": {"study": SMALLEST, "approve": True}}
    run = served.ask(f"/deployments/{form}/create_flow_run", values)["id"]
    served.ask(f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLED"}})


def test_a_study_that_no_firing_could_read_is_told_when_it_is_set(served: Served, tmp_path: Path):
    # The server was started in another folder, and reads the studies below that.
    study = shutil.copy(SMALLEST, tmp_path / "mine.yaml")
    words = ("name=mine", "--add-seeds", "1", "--max-seeds", "3", "--cron", "0 5 * * *")
    done = parcel(served.store, "sweep", study, *words)
    assert done.returncode == 0, done.stderr
    told = "as the server stands now, each firing will fail: config must lie below "
    assert told in done.stdout
    assert f"got '{study}'; `--root DIR` of `parcel serve` adds a folder" in done.stdout
    assert parcel(served.store, "schedule", "stop", "mine").returncode == 0
    # Nothing of the sort is said of one that they can read.
    done = parcel(served.store, "sweep", SMALLEST, *words)
    assert done.returncode == 0, done.stderr
    assert told not in done.stdout
    assert parcel(served.store, "schedule", "stop", "mine").returncode == 0
