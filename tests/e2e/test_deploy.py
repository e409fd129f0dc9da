"""A study deployed to a work pool, on a server with PostgreSQL: the server dies, a pod dies."""

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.store.store import Store
from tests.e2e.conftest import ENDLESS, PARCEL, SMALLEST, Served, end_tree, environment
from tests.gcs.server import GCS
from tests.infra.prefect.postgres import PREFECT, PrefectServer, postgres

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

STUDY = "study/smallest"
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    with postgres() as database:
        server = PrefectServer(database, tmp_path_factory.mktemp("server"))
        server.start()
        try:
            yield server
        finally:
            server.kill()


def rows_of(served: Served, run: str) -> list[tuple[str, str]]:
    wanted = {"flow_runs": {"id": {"any_": [run]}}, "limit": 200}
    rows = served.ask("/task_runs/filter", json.dumps(wanted).encode())
    return sorted((row["name"], row["state_type"]) for row in rows)


def deployed(server: PrefectServer, own: dict[str, str], pool: str) -> tuple[list[str], list[str]]:
    """Deploys the smallest study; returns the commands it prints: of worker and watch."""
    done = subprocess.run(
        [PARCEL, "deploy", SMALLEST, "--pool", pool],
        env=own,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert f"work pool {pool}: new, process\n" in done.stdout
    *_, worker, watch = done.stdout.splitlines()
    assert worker == f"start a worker: prefect worker start --pool {pool}"
    programs = {"prefect": PREFECT, "parcel": PARCEL}
    words = [line.partition(": ")[2].split() for line in (worker, watch)]
    first, second = ([programs[program], *rest] for program, *rest in words)
    return first, second


@contextlib.contextmanager
def running(
    command: list[str], own: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("w") as words:
        process = subprocess.Popen(command, env=own, stdout=words, stderr=words)
    try:
        yield process
    finally:
        if process.poll() is None:
            end_tree(process)


@pytest.mark.night
@pytest.mark.timeout(1500)
def test_a_deployed_run_survives_the_servers_restart(server: PrefectServer, tmp_path: Path):
    store, log = tmp_path / "store", tmp_path / "worker.log"
    own = environment(store) | {
        "PREFECT_API_URL": server.api,
        "PREFECT_HOME": str(tmp_path / "home"),
    }
    work, watch = deployed(server, own, "here")
    served = Served(server.api.removesuffix("/api"), store)

    def complete() -> list[tuple[str, str]] | None:
        rows = rows_of(served, run)
        return rows if {kind for _, kind in rows} == {"COMPLETED"} else None

    with running(work, own, log), running(watch, own, tmp_path / "watch.log"):
        run = served.start(STUDY)
        wait(lambda: ("stage1 vanilla", "COMPLETED") in rows_of(served, run), 600)
        server.kill()
        time.sleep(15)  # Long enough for steps to begin and end that nobody is told of.
        server.start()
        state = wait(lambda: ended(served, run), 600)
        assert state["type"] == "COMPLETED", state["message"] + log.read_text()
        # A busy server may write the last rows after the run has ended.
        rows = wait(complete, 120, lambda: rows_of(served, run))
    names = [name for name, _ in rows]
    assert len(set(names)) == len(names)
    assert sum(name.startswith("transfer vanilla chartqa seed=") for name in names) == 1
    (journal,) = (store / "runs").glob(f"*/{run}.jsonl")
    entries = map(json.loads, journal.read_text().splitlines())
    planned = next(entry["reads"] for entry in entries if entry["what"] == "plan")
    assert set(names) == set(planned)


@pytest.mark.timeout(1500)
def test_a_pod_that_dies_is_crashed_within_a_minute(server: PrefectServer, tmp_path: Path):
    def machine(name: str) -> dict[str, str]:
        return (
            environment(tmp_path)
            | gcs.environment
            | {
                "PARCEL_STORE": "gs://testing/studies",
                "PARCEL_STATE": str(tmp_path / name),
                "PREFECT_API_URL": server.api,
                "PREFECT_HOME": str(tmp_path / name),
            }
        )

    # A pod has its own disk and process space, and nobody outlives its first process.
    space = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*space, "true"], capture_output=True).returncode:
        pytest.skip("process spaces of their own are not allowed here")
    with GCS() as gcs:
        gcs.bucket("testing")
        work, watch = deployed(server, machine("laptop"), "pods")
        served = Served(server.api.removesuffix("/api"), tmp_path)
        with (
            running(watch, machine("watch"), tmp_path / "watch.log"),
            running([*space, *work], machine("pod"), tmp_path / "pod.log") as pod,
        ):
            run = served.start(STUDY, overrides=[ENDLESS])
            wait(lambda: ("stage1 vanilla", "RUNNING") in rows_of(served, run), 600)
            time.sleep(10)  # The run's lease was renewed since it began.
            pod.kill()
            began = time.monotonic()
            state = wait(lambda: ended(served, run), 120)
            took = time.monotonic() - began
            # The line comes when the rows are ended, too.
            line = f"run smallest ({run}): Crashed, its lease lapsed"
            wait(lambda: line in (tmp_path / "watch.log").read_text(), 60)
        print(f"Crashed {took:.0f} s after the pod's death")
        assert state["type"] == "CRASHED"
        assert "its lease lapsed" in state["message"]
        assert took < 60
        assert all(kind in FINAL for _, kind in rows_of(served, run)), rows_of(served, run)


@pytest.mark.timeout(1500)
def test_a_run_that_is_cancelled_ends_with_all_it_started(server: PrefectServer, tmp_path: Path):
    own = environment(tmp_path / "store") | {
        "PREFECT_API_URL": server.api,
        "PREFECT_HOME": str(tmp_path / "home"),
    }
    work, _ = deployed(server, own, "cancelling")
    served = Served(server.api.removesuffix("/api"), tmp_path / "store")
    with running(work, own, tmp_path / "worker.log"):
        run = served.start(STUDY, overrides=[ENDLESS])
        wait(lambda: ("stage1 vanilla", "RUNNING") in rows_of(served, run), 600)
        assert len(processes_of(run)) > 2
        asked = {"state": {"type": "CANCELLING"}, "force": True}
        served.ask(f"/flow_runs/{run}/set_state", json.dumps(asked).encode())
        state = wait(lambda: ended(served, run), 120)
        assert state["type"] == "CANCELLED", state["message"]
        wait(lambda: not processes_of(run), 60)
        wait(lambda: all(kind in FINAL for _, kind in rows_of(served, run)), 60)


@pytest.mark.night
@pytest.mark.timeout(1500)
def test_a_preempted_run_is_scheduled_again_and_goes_on(server: PrefectServer, tmp_path: Path):
    """Kubernetes, or `docker stop`, signals the first process of a container: the supervisor."""
    own = environment(tmp_path / "store") | {
        "PREFECT_API_URL": server.api,
        "PREFECT_HOME": str(tmp_path / "home"),
    }
    deployed(server, own, "preempting")
    served = Served(server.api.removesuffix("/api"), tmp_path / "store")
    form = served.ask(f"/deployments/name/{STUDY}", method="GET")
    run = served.start(STUDY, overrides=["stage1.total_steps=200"], until="train")
    own |= form["job_variables"]["env"] | {"PREFECT__FLOW_RUN_ID": run}
    execute = [PREFECT, "flow-run", "execute"]
    with running(execute, own, tmp_path / "first.log") as first:
        wait(lambda: list((tmp_path / "store").glob("scratch/checkpoint-*/**/0.json")), 600)
        first.terminate()
        assert first.wait(60) == 0, (tmp_path / "first.log").read_text()
        wait(lambda: not processes_of(run), 60)
    state = served.ask(f"/flow_runs/{run}", method="GET")["state"]
    assert (state["type"], state["name"]) == ("SCHEDULED", "AwaitingRetry"), state
    with running(execute, own, tmp_path / "second.log") as second:
        assert second.wait(600) == 0, (tmp_path / "second.log").read_text()
    state = ended(served, run)
    assert state is not None
    assert state["type"] == "COMPLETED", state["message"]
    rows = wait(lambda: (r := rows_of(served, run)) and {k for _, k in r} <= {*FINAL} and r, 60)
    # The try that was ended has its row, and what it had made is reused.
    stage1 = [kind for name, kind in rows if name == "stage1 vanilla"]
    assert sorted(stage1) == ["COMPLETED", "CRASHED"], rows
    checkpoints = Store(tmp_path / "store").artifacts("checkpoint")
    (checkpoint,) = (a for a in checkpoints if a.manifest.name == "stage1 vanilla")
    assert len(checkpoint.manifest.attempts) == 2


def processes_of(run: str) -> list[int]:
    """Returns the processes of a run, wherever their parents went: they inherit its environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("PREFECT__FLOW_RUN_ID") == run:
                found.append(process.pid)
    return found


def ended(served: Served, run: str) -> dict[str, Any] | None:
    state = served.ask(f"/flow_runs/{run}", method="GET")["state"]
    return state if state["type"] in FINAL else None


def wait(look: Any, timeout: float, told: Any = lambda: "it did not happen") -> Any:
    """Returns the result of `look` as soon as it is truthy."""
    deadline = time.monotonic() + timeout
    while not (found := look()):
        assert time.monotonic() < deadline, told()
        time.sleep(1)
    return found
