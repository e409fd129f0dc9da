"""A run is what its lease says: Crashed once that lapsed, Running again if it comes back."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from infra.store.store import Store
from tests.infra.prefect.test_rows import new_run, state_of

pytestmark = pytest.mark.deep

HOLDER = """
import sys, time
from infra.store.store import Store
with Store(sys.argv[1]).pin_run(sys.argv[2]):
    print("held", flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[..., psutil.Process]]:
    """Has a process of this machine, or of another process space, hold the lease of a run."""
    started: list[subprocess.Popen[str]] = []

    def start(run: str, *, elsewhere: bool) -> psutil.Process:
        space = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"] if elsewhere else []
        process = subprocess.Popen(
            [*space, sys.executable, "-c", HOLDER, str(tmp_path / "store"), run],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        if process.stdout.readline() != "held\n":
            assert process.stderr is not None
            pytest.skip(f"no process space of its own: {process.stderr.read().strip()}")
        found = psutil.Process(process.pid)
        return found.children()[0] if elsewhere else found

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.usefixtures("served_store")
def test_a_run_is_crashed_once_its_holder_is_gone_and_others_are_left_alone(
    tmp_path: Path, hold: Callable[..., psutil.Process]
):
    from infra.prefect.watch import Watch

    gone, alive, foreign = new_run("gone"), new_run("alive"), new_run("foreign")
    holder = hold(gone, elsewhere=False)
    hold(alive, elsewhere=False)
    watch = Watch(Store(tmp_path / "store"))
    # The lease of before the run began is that of an earlier try.
    wait_for_renewal(tmp_path / "store", gone, alive)
    assert watch.look() == []
    holder.kill()
    holder.wait()
    (said,) = watch.look()
    assert said.startswith(f"run gone ({gone}): Crashed, its lease lapsed: {os.uname().nodename}")
    assert state_of(gone)[0] == "Crashed"
    assert state_of(alive)[0] == state_of(foreign)[0] == "Running"
    assert watch.look() == []


@pytest.mark.usefixtures("served_store")
def test_a_run_that_somebody_cancels_is_cancelled_once_its_holder_is_gone(
    tmp_path: Path, hold: Callable[..., psutil.Process]
):
    from prefect.client.orchestration import get_client
    from prefect.states import Cancelling

    from infra.prefect.watch import Watch

    run = new_run("unwanted")
    holder = hold(run, elsewhere=False)
    wait_for_renewal(tmp_path / "store", run)
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(uuid.UUID(run), Cancelling(), force=True)
    holder.kill()
    holder.wait()
    why = "as somebody asked in the UI or by the API"
    assert Watch(Store(tmp_path / "store")).look() == [f"run unwanted ({run}): Cancelled, {why}"]
    assert state_of(run) == ("Cancelled", why)


@pytest.mark.usefixtures("served_store")
def test_rows_of_a_run_that_a_worker_found_dead_are_ended(
    tmp_path: Path, hold: Callable[..., psutil.Process]
):
    from prefect.client.orchestration import get_client
    from prefect.states import Crashed, Running

    from infra.prefect.watch import Watch
    from tests.infra.prefect.test_rows import new_row, states_of_rows

    run = new_run("lost")
    new_row(run, "train", Running())
    holder = hold(run, elsewhere=False)
    with get_client(sync_client=True) as client:
        holder.kill()
        holder.wait()
        lost = Crashed(message="the pod was evicted")
        client.set_flow_run_state(uuid.UUID(run), lost, force=True)
    watch = Watch(Store(tmp_path / "store"))
    assert watch.look() == []
    state, why = states_of_rows(run)["train"]
    assert state == "Crashed"
    assert why.endswith(": the pod was evicted")
    assert state_of(run) == ("Crashed", "the pod was evicted")


@pytest.mark.usefixtures("served_store")
def test_progress_is_told_as_an_event_whenever_there_is_some(
    tmp_path: Path, hold: Callable[..., psutil.Process]
):
    from prefect.client.orchestration import get_client

    from infra.prefect.watch import PROGRESS, Watch

    run = new_run("busy")
    hold(run, elsewhere=False)
    watch = Watch(Store(tmp_path / "store"), progress_every=0.0)

    def told(number: int) -> None:
        """Waits for the server to have written as many events of progress, in its batches."""
        asked = {
            "filter": {
                "event": {"name": [PROGRESS]},
                "resource": {"id": [f"prefect.flow-run.{run}"]},
            }
        }
        deadline = time.monotonic() + 30
        while True:
            with get_client(sync_client=True) as client:
                found = client.request("POST", "/events/filter", json=asked).json()
            if found["total"] == number:
                return
            assert time.monotonic() < deadline, found
            time.sleep(0.5)

    watch.look()
    told(0)
    shown = {"key": "progress-train", "type": "progress", "data": 1.0, "flow_run_id": run}
    with get_client(sync_client=True) as client:
        artifact = client.request("POST", "/artifacts/", json=shown).json()["id"]
        watch.look()
        watch.look()
        told(1)
        client.request("PATCH", "/artifacts/{id}", path_params={"id": artifact}, json={"data": 2.0})
    watch.look()
    told(2)


def wait_for_renewal(store: Path, *runs: str) -> None:
    from infra.store.pins import list_pins

    deadline = time.monotonic() + 30
    while True:
        renewed = {
            p.key.rpartition(".")[0] for p in list_pins(Store(store).files) if p.lease.renewals
        }
        if renewed >= set(runs):
            return
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.usefixtures("served_store")
def test_a_machine_that_is_gone_is_known_within_a_minute_and_one_that_slept_runs_on(
    tmp_path: Path, hold: Callable[..., psutil.Process]
):
    from infra.prefect.watch import Watch

    gone, asleep = new_run("gone"), new_run("asleep")
    holders = [hold(run, elsewhere=True) for run in (gone, asleep)]
    watch = Watch(Store(tmp_path / "store"))
    wait_for_renewal(tmp_path / "store", gone, asleep)
    assert watch.look() == []
    began = time.monotonic()
    holders[0].kill()
    holders[1].send_signal(signal.SIGSTOP)
    took = {}
    while len(took) < 2:
        watch.look()
        took |= {
            run: time.monotonic() - began
            for run in (gone, asleep)
            if run not in took and state_of(run)[0] == "Crashed"
        }
        assert time.monotonic() - began < 60, took
        time.sleep(5)
    print(f"Crashed after {sorted(took.values())} s")
    holders[1].send_signal(signal.SIGCONT)
    deadline = time.monotonic() + 30
    while state_of(asleep)[0] != "Running":
        assert time.monotonic() < deadline
        time.sleep(5)
        watch.look()
    assert state_of(gone)[0] == "Crashed"
