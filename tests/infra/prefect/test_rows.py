"""The UI's rows tell what a run's journal tells, however the run ended."""

import datetime
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

from infra.prefect import journal as journals
from infra.prefect.journal import Journal

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
    """Has a process write a journal and die of `kill -9`; returns the journal."""
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


def rows_of(flow_run_id: str) -> dict[str, tuple[str, str]]:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    asked = FlowRunFilter(id=FlowRunFilterId(any_=[uuid.UUID(flow_run_id)]))
    with get_client(sync_client=True) as client:
        rows = client.read_task_runs(flow_run_filter=asked, limit=200)
    assert len({row.name for row in rows}) == len(rows), "two rows of one node"
    return {row.name: (row.state_name or "", (row.state.message or "")) for row in rows}


def state_of(flow_run_id: str) -> tuple[str, str]:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        state = client.read_flow_run(uuid.UUID(flow_run_id)).state
    return state.name, state.message or ""


def test_a_killed_run_has_a_row_per_node_and_none_goes_on_for_ever(served_store: Path):
    from infra.prefect.rows import settle_ended

    run = new_run("killed")
    path = killed_run(
        served_store,
        run,
        """
names = ["made", "reused", "broken", "under way", "never reached"]
journal.plan("toy", {name: [] for name in names})
journal.started("made"); journal.ended("made", "made", "score 45.1")
journal.ended("reused", "reused", "score 3")
journal.started("broken"); journal.ended("broken", "failed", "no such file")
journal.started("under way")
""",
    )
    settle_ended(served_store)
    rows = rows_of(run)
    assert {name: state for name, (state, _) in rows.items()} == {
        "made": "Completed",
        "reused": "Completed",
        "broken": "Failed",
        "under way": "Crashed",
        "never reached": "Crashed",
    }
    assert rows["made"][1].startswith("made in 0.0 s: score 45.1")
    assert rows["broken"][1] == "failed: no such file"
    assert "under way when the run crashed: its process was killed" in rows["under way"][1]
    assert state_of(run) == ("Crashed", "its process was killed")
    assert not path.exists()
    assert (path.parents[1] / "ended" / path.name).exists()
    settle_ended(served_store)
    assert rows_of(run) == rows


def test_a_row_that_prefect_left_running_is_forced_and_stays(served_store: Path):
    from prefect.client.orchestration import get_client

    from infra.prefect.journal import Node
    from infra.prefect.rows import event, settle_ended

    run, task = new_run("left"), str(uuid.uuid4())
    killed_run(served_store, run, f'journal.submitted("train", "{task}"); journal.started("train")')
    from prefect.states import Running

    began = datetime.datetime.now(datetime.UTC)
    node = Node(name="train", task_run_id=task)

    def tell(at: datetime.datetime) -> None:
        with get_client(sync_client=True) as client:
            client.request("POST", "/events", json=[event(run, node, Running(), at)])

    tell(began)
    settle_ended(served_store)
    assert rows_of(run)["train"][0] == "Crashed"
    tell(began + datetime.timedelta(seconds=0.001))  # A queue that was slow.
    other = new_run("after")
    killed_run(served_store, other, 'journal.ended("a", "reused")')
    settle_ended(served_store)  # The server takes events in order: the late one is through.
    assert rows_of(run)["train"][0] == "Crashed"


def test_beyond_two_hundred_reused_nodes_one_row_lists_them(served_store: Path):
    from infra.prefect.rows import settle_ended

    few, many = new_run("few"), new_run("many")
    killed_run(served_store, few, 'for i in range(3): journal.ended(f"node {i}", "reused")')
    killed_run(
        served_store,
        many,
        """
for i in range(201): journal.ended(f"node {i}", "reused")
journal.started("new"); journal.ended("new", "made")
journal.close("completed")
""",
    )
    settle_ended(served_store)
    assert set(rows_of(few)) == {"node 0", "node 1", "node 2"}
    rows = rows_of(many)
    assert set(rows) == {"201 re-used", "new"}
    assert "node 200" in rows["201 re-used"][1]
    assert state_of(many)[0] == "Completed"
    with_logs = logs_of(many)
    assert any("node 200" in line for line in with_logs)


def test_a_run_under_way_tells_its_rows_with_what_they_read(served_store: Path):
    from prefect.client.orchestration import get_client

    from infra.prefect.journal import Node, RunRecord
    from infra.prefect.live import Live
    from infra.prefect.rows import settle
    from infra.processes.identity import ProcessNote

    run = new_run("live")
    data, train = Node(name="data"), Node(name="train")
    with Live(run) as live:
        live.began(data, [])
        live.ended(Node(name="data", outcome="made", detail="7 records"), [])
        live.began(train, ["data"], attempt=2)
        assert live.page("lineage-data", "# data", "prepare data", "data") is not None
        progress = live.page("progress-train", 10.0, "train", "train", kind="progress")
        assert progress is not None
        live.update(progress, 20.0, "train")
    nodes = {n.name: n for n in (Node(name="data", outcome="made", detail="7 records"), train)}
    record = RunRecord(
        flow_run_id=run,
        process=ProcessNote.of_this_process(),
        nodes=nodes,
        ending="completed",
        message="",
    )
    with get_client(sync_client=True) as client:
        asked = {"flow_runs": {"id": {"any_": [run]}}}
        deadline = time.monotonic() + 60
        while len(rows_of(run)) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        rows = {
            row["name"]: row
            for row in client.request("POST", "/task_runs/filter", json=asked).json()
        }
        pages = client.request("POST", "/artifacts/filter", json=asked).json()
    assert rows["data"]["state"]["type"] == "COMPLETED"
    assert rows["data"]["id"] == live.task_run_id("data")
    assert rows["train"]["state"]["name"] == "Retrying"
    assert rows["train"]["run_count"] == 2
    assert [read["id"] for read in rows["train"]["task_inputs"]["wait_for"]] == [rows["data"]["id"]]
    assert {(page["key"], page["data"], page["task_run_id"]) for page in pages} == {
        ("lineage-data", "# data", rows["data"]["id"]),
        ("progress-train", 20.0, rows["train"]["id"]),
    }
    assert "data: made in 0.0 s: 7 records" in logs_of(run)
    nodes["train"].outcome = "made"
    assert settle(record)
    assert rows_of(run)["train"][0] == "Completed"


def logs_of(flow_run_id: str) -> list[str]:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

    asked = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[uuid.UUID(flow_run_id)]))
    with get_client(sync_client=True) as client:
        return [log.message for log in client.read_logs(asked)]


def test_a_run_under_way_is_left_alone(served_store: Path):
    from infra.prefect.rows import settle_ended

    run = new_run("under way")
    journal = Journal(served_store, run)
    journal.started("train")
    settle_ended(served_store)
    assert rows_of(run) == {}
    assert state_of(run)[0] == "Running"
    assert journal.path.exists()
    journal.close("cancelled", "SIGINT came")
    settle_ended(served_store)
    assert Counter(state for state, _ in rows_of(run).values()) == {"Crashed": 1}
    assert state_of(run) == ("Cancelled", "SIGINT came")


def test_half_a_last_line_is_no_line(tmp_path: Path):
    journal = Journal(tmp_path, "run")
    journal.started("train")
    journal.ended("train", "made")
    text = journal.path.read_text()
    journal.path.write_text(text[:-20])
    record = journals.read(journal.path)
    assert record is not None
    assert record.nodes["train"].outcome is None
