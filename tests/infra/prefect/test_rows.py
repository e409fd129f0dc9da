"""The UI's rows agree with a run's journal, however the run ended."""

import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from infra.prefect import journal as journals
from infra.prefect.journal import Journal
from infra.store.store import Store

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

pytestmark = pytest.mark.slow

WRITER = """
import os, signal, sys
from pathlib import Path
from infra.prefect.journal import Journal
journal = Journal(Path(sys.argv[1]), sys.argv[2])
{lines}
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_run(store: Path, flow_run_id: str, lines: str) -> Path:
    """Has a process write a journal and die of `kill -9`; returns the journal's path."""
    code = WRITER.format(lines=lines)
    done = subprocess.run([sys.executable, "-c", code, str(store), flow_run_id])
    assert done.returncode == -9
    return journals.folder(store) / f"{flow_run_id}.jsonl"


def new_run(name: str) -> str:
    """Has Prefect note a flow run as running."""
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.states import Running

    @flow(name="study")
    def study() -> None: ...

    with get_client(sync_client=True) as client:
        run = client.create_flow_run(study, name=name, state=Running())
    return str(run.id)


def new_row(flow_run_id: str, name: str, state: "State[Any]") -> str:
    """Has Prefect note a task run of a flow run, and returns its id."""
    from prefect import task
    from prefect.client.orchestration import get_client

    @task
    def step() -> None: ...

    with get_client(sync_client=True) as client:
        row = client.create_task_run(
            step, uuid.UUID(flow_run_id), dynamic_key=name, id=uuid.uuid4(), name=name, state=state
        )
    return str(row.id)


def states_of_rows(flow_run_id: str) -> dict[str, tuple[str, str]]:
    """Returns the rows of a run: name -> name and message of the state."""
    from prefect.client.orchestration import get_client

    from infra.prefect.rows import task_runs_of

    with get_client(sync_client=True) as client:
        rows = list(task_runs_of(client, uuid.UUID(flow_run_id)))
    assert len({row.name for row in rows}) == len(rows), "two rows of one node"
    return {row.name: (row.state.name or "", row.state.message or "") for row in rows if row.state}


def state_of(flow_run_id: str) -> tuple[str, str]:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        state = client.read_flow_run(uuid.UUID(flow_run_id)).state
    return state.name, state.message or ""


@pytest.mark.usefixtures("served_store")
def test_a_run_that_is_executed_again_ends_the_rows_of_its_earlier_try():
    from prefect.client.orchestration import get_client
    from prefect.states import AwaitingRetry, Completed, Running

    from infra.prefect.rows import settle_earlier_try

    run = new_run("again")
    new_row(run, "made", Completed(message="made"))
    new_row(run, "under way", Running())
    settle_earlier_try(run)
    assert states_of_rows(run)["under way"][0] == "Running", "there is no earlier try"
    with get_client(sync_client=True) as client:
        for state in (AwaitingRetry(), Running()):
            client.set_flow_run_state(uuid.UUID(run), state, force=True)
    settle_earlier_try(run)
    rows = states_of_rows(run)
    assert rows["made"] == ("Completed", "made")
    assert rows["under way"][0] == "Crashed"
    assert "an earlier try" in rows["under way"][1]
    assert state_of(run)[0] == "Running"


def test_a_run_that_was_scheduled_again_stays_so(served_store: Path):
    from prefect.client.orchestration import get_client
    from prefect.states import AwaitingRetry, Running

    from infra.prefect.rows import settle_ended

    run = new_run("preempted")
    new_row(run, "under way", Running())
    killed_run(served_store, run, 'journal.close("crashed", "SIGTERM came")')
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(uuid.UUID(run), AwaitingRetry(), force=True)
    settle_ended(Store(served_store))
    assert state_of(run)[0] == "AwaitingRetry"
    assert states_of_rows(run)["under way"][0] == "Crashed"


def test_the_rows_of_a_killed_run_end_and_missing_ones_are_made(served_store: Path):
    from prefect.states import Completed, Pending, Running

    from infra.prefect.rows import settle_ended

    run = new_run("killed")
    ids = {
        "reported": new_row(run, "reported", Completed(message="made")),
        "unreported": new_row(run, "unreported", Running()),
        "broken": new_row(run, "broken", Running()),
        "under way": new_row(run, "under way", Running()),
        "made, no row": str(uuid.uuid4()),
        "under way, no row": str(uuid.uuid4()),
    }
    new_row(run, "unknown to the journal", Pending())
    path = killed_run(
        served_store,
        run,
        f"""
ids = {ids}
journal.plan("toy", {{name: [] for name in [*ids, "never reached"]}})
for name, row in ids.items(): journal.started(name, row)
journal.ended("reported", "made", "score 45.1")
journal.ended("unreported", "made", "score 45.1")
journal.ended("made, no row", "made", "score 45.1")
journal.ended("broken", "failed", "no such file")
journal.ended("silent", "reused")
""",
    )
    settle_ended(Store(served_store))
    rows = states_of_rows(run)
    assert {name: state for name, (state, _) in rows.items()} == {
        "reported": "Completed",
        "unreported": "Completed",
        "broken": "Failed",
        "under way": "Crashed",
        "made, no row": "Completed",
        "under way, no row": "Crashed",
        "unknown to the journal": "Crashed",
    }
    assert rows["reported"][1] == "made"  # Prefect's own, as it was.
    assert rows["unreported"][1].startswith("made in 0.0 s: score 45.1")
    assert rows["made, no row"][1].startswith("made in 0.0 s: score 45.1")
    assert rows["broken"][1] == "failed: no such file"
    assert rows["under way"][1].endswith(": its process was killed")
    assert state_of(run) == ("Crashed", "its process was killed")
    assert not path.exists()
    assert (path.parents[1] / "ended" / path.name).exists()
    settle_ended(Store(served_store))
    assert states_of_rows(run) == rows


def test_a_damaged_journal_keeps_no_other_from_being_settled(served_store: Path):
    from infra.prefect.rows import settle_ended

    runs = sorted(new_run(name) for name in ("first line", "a line", "no run", "whole"))
    paths = [killed_run(served_store, run, 'journal.plan("toy", {})') for run in runs]
    first, _, rest = paths[0].read_text().partition("\n")
    paths[0].write_text(f"{first[:40]}\n{rest}")
    paths[1].open("a").write("null\n")
    # Neither a file: it sorts before the others, as "0" does.
    folder, stray = paths[0].with_name("0.jsonl"), paths[0].with_name("00.jsonl")
    folder.mkdir()
    stray.write_text("[]\n")
    try:
        lines = settle_ended(Store(served_store))
    finally:
        folder.rmdir()
        stray.unlink(missing_ok=True)
    assert [state_of(run)[0] for run in runs] == ["Crashed"] * 4
    assert not any(path.exists() for path in paths)
    for path in (folder, stray, *paths[:2]):
        assert sum(f"/{path.name}: " in line for line in lines) == 1, lines
    assert len(lines) == 4


def test_a_command_that_finds_nothing_to_run_ends_the_rows_of_killed_runs(served_store: Path):
    from flows.machine.start import settle_earlier_runs
    from infra.prefect.journal import has_unsettled

    run = new_run("killed before a sweep that is complete")
    killed_run(served_store, run, 'journal.plan("toy", {})')
    assert has_unsettled(Store(served_store))
    settle_earlier_runs(Store(served_store))
    assert state_of(run)[0] == "Crashed"
    assert not has_unsettled(Store(served_store))


def test_an_event_that_comes_late_changes_no_settled_row(served_store: Path):
    # The queue of a killed process may still be on its way when its rows are settled: so an event
    # of Prefect's own engine is sent a second time, after the settling.
    from prefect import flow, task
    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run, task_run
    from prefect.states import Running

    from infra.prefect.journal import JournalNode, RunRecord
    from infra.prefect.rows import settle
    from infra.processes.identity import NOBODY

    @task(task_run_name="train")
    def train() -> tuple[str, dict[str, Any]]:
        row = str(task_run.id)
        wanted = {
            "filter": {
                "event": {"name": ["prefect.task-run.Running"]},
                "resource": {"id": [f"prefect.task-run.{row}"]},
            }
        }
        deadline = time.monotonic() + 60
        while True:
            with get_client(sync_client=True) as client:
                events = client.request("POST", "/events/filter", json=wanted).json()["events"]
            if events:
                return row, events[0]
            assert time.monotonic() < deadline
            time.sleep(0.3)

    @flow(name="study")
    def study() -> tuple[str, str, dict[str, Any]]:
        return str(flow_run.id), *train()

    run, row, event = study()
    with get_client(sync_client=True) as client:
        client.set_task_run_state(uuid.UUID(row), Running(), force=True)
        node = JournalNode(name="train", outcome="failed", detail="no such file", task_run_id=row)
        settle(RunRecord(flow_run_id=run, process=NOBODY, nodes={"train": node}))
        assert states_of_rows(run)["train"] == ("Failed", "failed: no such file")
        fields = ("event", "occurred", "resource", "related", "payload")
        late = {"id": str(uuid.uuid4()), **{field: event[field] for field in fields}}
        client.request("POST", "/events", json=[late])
        time.sleep(2)
    assert states_of_rows(run)["train"] == ("Failed", "failed: no such file")


def test_a_run_under_way_is_left_alone(served_store: Path):
    from prefect.states import Running

    from infra.prefect.rows import settle_ended

    run = new_run("under way")
    journal = Journal(served_store, run)
    journal.started("train", new_row(run, "train", Running()))
    settle_ended(Store(served_store))
    assert states_of_rows(run)["train"][0] == "Running"
    assert state_of(run)[0] == "Running"
    assert journal.path.exists()
    journal.close("cancelled", "SIGINT came")
    settle_ended(Store(served_store))
    assert states_of_rows(run)["train"][0] == "Crashed"
    assert state_of(run) == ("Cancelled", "SIGINT came")


def test_half_a_last_line_is_no_line(tmp_path: Path):
    journal = Journal(tmp_path, "run")
    journal.started("train")
    journal.ended("train", "made")
    text = journal.path.read_text()
    journal.path.write_text(text[:-20])
    record = journals.read_journal(journal.path)
    assert record is not None
    assert record.nodes["train"].outcome is None
