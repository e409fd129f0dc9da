"""Nodes as Prefect tasks: their states, rows and retries, on a real server."""

import dataclasses
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from flows.graph.nodes import GraphNode
from flows.run.limits import NodeHeldError
from flows.run.node_tasks import NodeTasks
from flows.run.session import RunSession, StepFailedError
from infra.prefect import journal
from infra.ray.errors import RayWorkerLostError
from tests.flows.run.sessions import session_of
from tests.flows.run.test_run_order import node


class Outcome:
    """A run of a few nodes: the session, the journal's record, and the rows on the server."""

    def __init__(self, session: RunSession, record: journal.RunRecord, run: uuid.UUID) -> None:
        self.session, self.run = session, run
        self.outcomes = {name: node.outcome for name, node in record.nodes.items()}

    def rows(self) -> dict[str, Any]:
        """Returns the rows of the run, by name, once each of its nodes has one."""
        from prefect.client.orchestration import get_client

        from infra.prefect.rows import flush, task_runs_of

        flush()
        deadline = time.monotonic() + 60
        while True:
            with get_client(sync_client=True) as client:
                rows = list(task_runs_of(client, self.run))
            if all(row.state is not None and row.state.is_final() for row in rows) and rows:
                return {row.name: row for row in rows}
            assert time.monotonic() < deadline, rows
            time.sleep(0.2)


@dataclasses.dataclass
class Work:
    """The work of nodes, which is a function of the test."""

    function: Callable[[GraphNode], Any]

    def find(self, node: GraphNode) -> bool:
        """Finds every node."""
        return True

    def make(self, node: GraphNode) -> Any:
        """Makes a node by the function."""
        return self.function(node) or "made"

    def describe(self, node: GraphNode, outcome: str) -> tuple[str, float]:
        """Describes every node alike."""
        return "score 45.1", 2.0


@pytest.fixture
def run(served_store: Path, tmp_path: Path) -> Callable[..., Outcome]:
    """Runs nodes by a function, within a flow."""
    from prefect import flow
    from prefect.runtime import flow_run

    from infra.prefect.page_queue import PageQueue

    def run(
        nodes: list[GraphNode], make: Callable[[GraphNode], Any], *, reused: int = 0, **state: Any
    ) -> Outcome:
        outcomes: list[Outcome] = []

        @flow(name="study")
        def study() -> None:
            run_id = cast(str, flow_run.id)
            state.update(reused=set(nodes[:reused]), retry_after=0.0)
            with PageQueue(run_id) as pages:
                session = session_of(tmp_path, nodes, run_id=run_id, pages=pages, **state)
                NodeTasks(session, Work(make)).run(on_workers=4, in_process=4)
            record = journal.read_journal(session.traces.journal.path)
            assert record is not None
            outcomes.append(Outcome(session, record, uuid.UUID(run_id)))

        study()
        return outcomes[0]

    return run


@pytest.mark.slow
def test_a_row_runs_while_the_work_goes_on_and_reads_what_the_node_read(run: Callable[..., Any]):
    from prefect.client.orchestration import get_client
    from prefect.runtime import task_run

    states: list[str] = []

    def make(one: GraphNode) -> None:
        if one.name != "train":
            return
        deadline = time.monotonic() + 60
        with get_client(sync_client=True) as client:
            while not states and time.monotonic() < deadline:
                try:
                    state = client.read_task_run(uuid.UUID(cast(str, task_run.id))).state
                except Exception:  # Its first event is on its way.
                    state = None
                if state is not None and state.is_running():
                    states.append(state.name or "")
                time.sleep(0.1)

    data = node("data", cpus=0)
    outcome = run([data, node("train", data)], make)
    assert states == ["Running"]
    rows = outcome.rows()
    assert {name: row.state.name for name, row in rows.items()} == {
        "data": "Completed",
        "train": "Completed",
    }
    assert rows["train"].state.message == "made in 2.0 s: score 45.1"
    assert [read.id for read in rows["train"].task_inputs["wait_for"]] == [rows["data"].id]
    assert not rows["train"].tags


@pytest.mark.slow
def test_a_lost_worker_is_tried_again_and_a_failure_is_not(run: Callable[..., Any]):
    tries: list[str] = []

    def make(one: GraphNode) -> None:
        tries.append(one.name)
        if (one.name == "lost" and tries.count("lost") < 3) or one.name == "lost for good":
            raise RayWorkerLostError("it died")
        if one.name == "broken":
            raise StepFailedError("no such file")
        if one.name == "reader":
            raise NodeHeldError("since broken failed")

    broken = node("broken")
    nodes = [node("lost"), node("lost for good"), broken, node("reader", broken)]
    outcome = run(nodes, make, retries=2)
    assert outcome.outcomes == {
        "lost": "made",
        "lost for good": "failed",
        "broken": "failed",
        "reader": "not run",
    }
    assert sorted(tries) == ["broken", *["lost"] * 3, *["lost for good"] * 3, "reader"]
    assert outcome.session.failures == {
        "lost for good": "it died",
        "broken": "no such file",
    }
    assert [*outcome.session.holds.values()] == ["since broken failed"]
    rows = outcome.rows()
    ends = {name: (row.state.name, row.run_count) for name, row in rows.items()}
    assert ends == {
        "lost": ("Completed", 3),
        "lost for good": ("Failed", 3),
        "broken": ("Failed", 1),
        "reader": ("Cancelled", 1),
    }
    assert rows["reader"].state.message == "not run: since broken failed"
    assert rows["broken"].state.message == "failed: no such file"
    assert [read.id for read in rows["reader"].task_inputs["wait_for"]] == [rows["broken"].id]


@pytest.mark.slow
def test_what_is_held_back_has_neither_failed_nor_run(run: Callable[..., Any]):
    def make(one: GraphNode) -> None:
        raise NodeHeldError("outside 20:00-08:00 UTC")

    a = node("a")
    nodes = [a, node("b", a)]
    outcome = run(nodes, make)
    assert outcome.outcomes == {"a": "not run", "b": "not run"}
    assert outcome.session.holds == dict.fromkeys(nodes, "outside 20:00-08:00 UTC")
    assert not outcome.session.failures
    assert {row.state.name for row in outcome.rows().values()} == {"Cancelled"}


@pytest.mark.slow
def test_more_than_two_hundred_reused_nodes_share_a_row(run: Callable[..., Any]):
    nodes = [node(f"node {i}") for i in range(201)]
    rows = run([*nodes, node("new", nodes[200])], lambda _: None, reused=201).rows()
    assert set(rows) == {"201 reused", "new"}
    assert "node 200" in rows["201 reused"].state.message
