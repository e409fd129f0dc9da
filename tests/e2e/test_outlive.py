"""A long step on a cluster outlives the run that began it; a person can end it all the same."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.steps.job import JobReport
from infra.store.store import JOBS, Store
from tests.e2e.conftest import ENDLESS, PARCEL, SMALLEST, environment, serving
from tests.processes import command_line, end_family
from tests.ray_nodes import Head, head_of

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

STUDY = ("hygiene=null", "stage1.log_steps=2")
STOP_WITHIN = 30.0
"""From Cancel in the UI until nothing of it runs [s]."""


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with head_of(tmp_path_factory.mktemp("node"), "--num-cpus=2") as made:
        yield made


def wait_for(what: Callable[[], Any], alive: Callable[[], bool], log: Path) -> Any:
    deadline = time.monotonic() + 150
    while not (found := what()):
        assert alive(), log.read_text()[-3000:]
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)
    return found


def training(store: Store) -> tuple[psutil.Process, int] | None:
    """The process that trains Stage 1 for a store, and how many updates it has told of."""
    for process in psutil.process_iter():
        words = command_line(process)
        if "python -m flows.steps.job" in words and store.uri in words:
            for job in store.volatile.folders(JOBS):
                report = JobReport.read(store.volatile, job)
                if report.step == "stage1 vanilla" and report.progress and not report.is_ended:
                    return process, report.progress.done
    return None


def test_a_run_that_is_killed_stops_nothing_and_the_next_one_takes_it_up(
    head: Head, tmp_path: Path
):
    home, log = tmp_path / "store", tmp_path / "log"
    words = [PARCEL, "run", SMALLEST, *STUDY, "stage1.total_steps=150", "stage1.save_steps=150"]
    words.append(f"compute.ray_address={head.address}")
    own = environment(home) | {"RAY_AUTH_MODE": "disabled"}
    with log.open("w") as out:
        first = subprocess.Popen(words, env=own, stdout=out, stderr=subprocess.STDOUT)
    store = Store(home)
    process, done = wait_for(lambda: training(store), lambda: first.poll() is None, log)
    server = json.loads((home / "prefect" / "server.json").read_text())["process"]["pid"]
    # Neither has a word left to say; what they had started on this machine ends with them.
    first.kill()
    os.kill(server, signal.SIGKILL)
    first.wait()
    more = wait_for(
        lambda: (now := training(store)) and now[1] > done and now, process.is_running, log
    )
    assert more[0].pid == process.pid
    second = subprocess.run(words, env=own, capture_output=True, text=True, timeout=400)
    assert second.returncode == 0, second.stdout[-3000:] + second.stderr[-3000:]
    (stage1,) = (a for a in store.artifacts("checkpoint") if a.manifest.name == "stage1 vanilla")
    assert len(stage1.manifest.attempts) == 1
    assert stage1.manifest.environment["prefect"]["flow_run_id"]  # Of the run that was killed.
    assert not any("flows.steps.job" in command_line(p) for p in psutil.process_iter())


@pytest.mark.night
def test_cancel_in_the_ui_stops_the_jobs(head: Head, tmp_path: Path):
    home = tmp_path / "store"
    with serving(home, {"RAY_AUTH_MODE": "disabled"}) as served:
        overrides = [*STUDY, f"compute.ray_address={head.url}", ENDLESS]
        run = served.start(
            "study/study", study=SMALLEST, overrides=overrides, until="train", store=str(home)
        )
        store = Store(home)
        process, _ = wait_for(lambda: training(store), lambda: True, home.parent / "serve.log")
        family = [process, *process.children(recursive=True)]
        try:
            asked = {"state": {"type": "CANCELLING"}}
            path = f"/flow_runs/{run}/set_state"
            began = time.monotonic()
            served.ask(path, json.dumps(asked).encode())
            assert not psutil.wait_procs(family, timeout=STOP_WITHIN)[1]
            print(f"stopped {time.monotonic() - began:.1f} s after Cancel")
            while (state := served.ask(f"/flow_runs/{run}", method="GET"))["state_type"] == (
                "CANCELLING"
            ):
                assert time.monotonic() - began < 2 * STOP_WITHIN
                time.sleep(0.5)
            assert state["state_type"] == "CANCELLED"
            time.sleep(5)  # A job taken for lost would be tried again after one second.
            jobs = [job for job in store.volatile.folders(JOBS) if job.startswith("checkpoint")]
            assert len(jobs) == 1
            assert training(store) is None
        finally:
            end_family(process)


@pytest.mark.night
def test_cancel_stops_the_jobs_of_a_run_whose_process_died(head: Head, tmp_path: Path):
    home, log = tmp_path / "store", tmp_path / "log"
    with serving(home, {"RAY_AUTH_MODE": "disabled"}) as served:
        words = [PARCEL, "run", SMALLEST, *STUDY, ENDLESS]
        words.append(f"compute.ray_address={head.url}")
        own = environment(home) | {"RAY_AUTH_MODE": "disabled"}
        with log.open("w") as out:
            first = subprocess.Popen(words, env=own, stdout=out, stderr=subprocess.STDOUT)
        store = Store(home)
        process, _ = wait_for(lambda: training(store), lambda: first.poll() is None, log)
        family = [process, *process.children(recursive=True)]
        try:
            wanted = {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}}
            (run,) = served.ask("/flow_runs/filter", json.dumps(wanted).encode())
            first.kill()
            asked = {"state": {"type": "CANCELLING"}, "force": True}
            served.ask(f"/flow_runs/{run['id']}/set_state", json.dumps(asked).encode())
            began = time.monotonic()
            assert not psutil.wait_procs(family, timeout=STOP_WITHIN)[1]
            print(f"stopped {time.monotonic() - began:.1f} s after Cancel")
            state = served.ask(f"/flow_runs/{run['id']}", method="GET")["state_type"]
            assert state == "CANCELLED"
        finally:
            first.wait()
            end_family(process)
