"""A study made wider: by the command, by a firing of its schedule, with somebody's approval."""

import datetime
import json
import re
import time
from pathlib import Path

import pytest

from infra.store.store import Store
from tests.e2e.conftest import SMALLEST, Served, parcel

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

ROWS = 2
NARROW = ("methods=[vanilla]", "budgets=[256]")
"""Of the study that ran: one method, whose two seeds are there."""
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def checkpoints(store: Path) -> set[str]:
    return {artifact.key for artifact in Store(store).artifacts("checkpoint")}


def reached(served: Served, run: str, *kinds: str) -> dict:
    """Waits for a state of a run; returns it."""
    deadline = time.monotonic() + 300
    while True:
        state = served.ask(f"/flow_runs/{run}", method="GET")["state"]
        if state["type"] in kinds:
            return state
        assert state["type"] not in ENDED, state
        assert time.monotonic() < deadline, state
        time.sleep(1)


def test_only_the_new_cells_of_one_more_seed_run(served: Served):
    words = ("sweep", "tiny", *NARROW, "name=wide", "--add-seeds", "1", "--max-seeds", "3")
    before = checkpoints(served.store)
    told = parcel(served.store, *words, "--explain").stdout
    assert f"{2 * ROWS} cells are there, {ROWS} are new: {ROWS} of seed " in told
    now = datetime.datetime.now(datetime.UTC)
    later = [f"{(now.hour + hours) % 24:02}:00" for hours in (2, 3)]
    closed = parcel(served.store, *words, "--from", later[0], "--to", later[1])
    assert closed.returncode == 0, closed.stdout + closed.stderr
    assert f"not run, outside {later[0]}-{later[1]} UTC: transfer vanilla" in closed.stdout
    assert checkpoints(served.store) == before
    done = parcel(served.store, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " made, " in done.stdout
    assert len(checkpoints(served.store) - before) == 1
    again = parcel(served.store, *words)
    assert re.match(r"nothing to run: .*3 seeds .*max_seeds=3\b", again.stdout)


def test_a_firing_outside_its_window_begins_nothing_in_an_empty_store(tmp_path: Path):
    now = datetime.datetime.now(datetime.UTC)
    later = [f"{(now.hour + hours) % 24:02}:00" for hours in (2, 3)]
    words = ("--add-seeds", "1", "--max-seeds", "2", "--from", later[0], "--to", later[1])
    closed = parcel(tmp_path / "store", "sweep", SMALLEST, *words)
    assert closed.returncode == 0, closed.stdout + closed.stderr
    assert f"not run, outside {later[0]}-{later[1]} UTC: " in closed.stdout
    assert not checkpoints(tmp_path / "store")


def test_a_firing_of_a_schedule_adds_and_an_empty_one_says_so(served: Served):
    done = parcel(
        served.store, "sweep", "tiny", *NARROW, "name=nightly", "--add-seeds", "1",
        "--max-seeds", "2", "--cron", "0 20 * * *", "--timezone", "Europe/Berlin",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("deployment sweep/sweep: fires at '0 20 * * *' Europe/Berlin\n")
    found = served.ask("/deployments/name/sweep/sweep", method="GET")
    (schedule,) = [each for each in found["schedules"] if each["slug"] == "sweep-nightly"]
    assert "**The next firing of nightly**" in found["description"]
    # The cells are there, the table of this name is not: the first firing makes it.
    first = served.start("sweep/sweep", **schedule["parameters"])
    assert reached(served, first, *ENDED)["type"] == "COMPLETED"
    second = served.start("sweep/sweep", **schedule["parameters"])
    state = reached(served, second, *ENDED)
    assert state["type"] == "COMPLETED"
    assert re.match(r"nothing to run: .*2 seeds .*max_seeds=2\b", state["message"])


@pytest.mark.parametrize("answer", ["no", "cancel"])
def test_a_run_that_is_not_approved_makes_nothing(served: Served, answer: str):
    before = checkpoints(served.store)
    run = served.start(
        "study/study",
        study="tiny",
        overrides=[*NARROW, "name=asks", "num_seeds=5"],
        approve=True,
    )
    reached(served, run, "PAUSED")
    if answer == "no":
        form = served.ask(f"/flow_runs/{run}/input/filter", b'{"prefix": "paused", "limit": 9}')
        assert any("transfer vanilla chartqa" in each["value"] for each in form)
        body = json.dumps({"run_input": {"start": False}}).encode()
        assert served.ask(f"/flow_runs/{run}/resume", body)["status"] == "ACCEPT"
    else:
        asked = {"state": {"type": "CANCELLING"}}
        served.ask(f"/flow_runs/{run}/set_state", json.dumps(asked).encode())
    assert reached(served, run, *ENDED)["type"] == "CANCELLED"
    assert checkpoints(served.store) == before


def test_an_approved_run_goes_on(served: Served):
    run = served.start(
        "study/study",
        study="tiny",
        overrides=[*NARROW, "name=asked", "num_seeds=1", "compute.topology=h100:4"],
        approve=True,
    )
    reached(served, run, "PAUSED")
    form = served.ask(f"/flow_runs/{run}/input/filter", b'{"prefix": "paused", "limit": 9}')
    (told,) = [each["value"] for each in form if "plan of asked on h100:4" in each["value"]]
    assert "| stage1 vanilla | 1 | 6 |" in told
    assert told.index("| stage1 vanilla | 1 |") < told.index("| before the run | step |")
    body = json.dumps({"run_input": {"start": True}}).encode()
    assert served.ask(f"/flow_runs/{run}/resume", body)["status"] == "ACCEPT"
    assert reached(served, run, *ENDED)["type"] == "COMPLETED"
