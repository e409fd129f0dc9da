"""A study deployed to a work pool, on a server with PostgreSQL that is killed in mid-run."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import CONFIG, PARCEL, Served, end_tree, environment
from tests.infra.prefect.postgres import PREFECT, PrefectServer, postgres

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

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


@pytest.mark.timeout(1500)
def test_a_deployed_run_survives_the_servers_restart(server: PrefectServer, tmp_path: Path):
    store, home = tmp_path / "store", tmp_path / "home"
    own = environment(store) | {"PREFECT_API_URL": server.api, "PREFECT_HOME": str(home)}
    done = subprocess.run(
        [PARCEL, "deploy", CONFIG, "--pool", "here"],
        env=own, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "work pool here: new, process\ndeployment study/tiny: new" in done.stdout
    command = done.stdout.rpartition("start a worker: ")[2].partition("\n")[0].split()
    assert command == ["prefect", "worker", "start", "--pool", "here"]
    served = Served(server.api.removesuffix("/api"), store)
    with (tmp_path / "worker.log").open("w") as log:
        worker = subprocess.Popen([PREFECT, *command[1:]], env=own, stdout=log, stderr=log)
    try:
        found = served.ask("/deployments/name/study/tiny", method="GET")
        path = f"/deployments/{found['id']}/create_flow_run"
        run = served.ask(path, json.dumps({"parameters": found["parameters"]}).encode())["id"]
        wait(lambda: ("stage1 vanilla", "COMPLETED") in rows_of(served, run), 600)
        server.kill()
        time.sleep(15)  # Long enough for steps to begin and end that nobody is told of.
        server.start()
        state = wait(lambda: ended(served, run), 600)
    finally:
        end_tree(worker)
    assert state["type"] == "COMPLETED", state["message"] + (tmp_path / "worker.log").read_text()
    rows = rows_of(served, run)
    names = [name for name, _ in rows]
    assert len(set(names)) == len(names)
    assert {kind for _, kind in rows} == {"COMPLETED"}, rows
    assert sum(name.startswith("transfer parcel chartqa seed=") for name in names) == 2
    journal = store / "runs" / "ended" / f"{run}.jsonl"
    if not journal.exists():
        journal = store / "runs" / "active" / f"{run}.jsonl"
    planned = next(
        entry["names"]
        for entry in map(json.loads, journal.read_text().splitlines())
        if entry["what"] == "plan"
    )
    assert set(names) == set(planned)


def ended(served: Served, run: str) -> dict[str, Any] | None:
    state = served.ask(f"/flow_runs/{run}", method="GET")["state"]
    return state if state["type"] in FINAL else None


def wait(look: Any, timeout: float) -> Any:
    """Returns what `look` does, as soon as that is anything."""
    deadline = time.monotonic() + timeout
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(1)
    return found
