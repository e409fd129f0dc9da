"""Running a graph: how many nodes at once, in which order, and again where a worker is lost."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flows.steps.kind import Step
from flows.steps.worker import StepOutcome
from flows.study import execute
from flows.study.eta import Forecast, TimeEstimates
from flows.study.execute import RunSession, StepFailedError, run_graph
from flows.study.graph import GraphNode, StepJob, StudyGraph
from flows.study.sweep_limits import Admission, NodeHeldError
from infra.prefect import journal
from infra.prefect.journal import Journal
from infra.prefect.live import Live
from infra.progress import Progress
from infra.ray.errors import RayWorkerLostError
from infra.store.manifest import Recipe


def cell(name: str, *reads: GraphNode) -> GraphNode:
    inputs = {read.name: read.steps[0] for read in reads}
    step = Step(kind="files", name=name, inputs=inputs)
    return GraphNode(name=name, jobs=(StepJob(steps=(step,), cpus=1),))


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[RunSession, dict[str, Any]]]:
    """Runs nodes by a function; returns the session, and how the journal says they ended."""

    def run(
        nodes: list[GraphNode], make: Callable[[GraphNode], Any], at_once: int, **more: Any
    ) -> tuple[RunSession, dict[str, Any]]:
        monkeypatch.setattr(execute, "_run_node", lambda session, node: make(node) or "made")
        monkeypatch.setattr(execute, "_report_node_end", report_node_end)
        monkeypatch.setattr(execute, "_RETRY_AFTER", 0.0)
        workers = SimpleNamespace(leave=lambda: None)
        display = SimpleNamespace(finish=lambda *_, **__: None)
        noted = Journal(tmp_path, "run")
        forecast = Forecast(TimeEstimates(), nodes)
        given = {
            "live": Live(""),
            "expected": TimeEstimates(),
            "retries": 0,
            "failures": {},
            **more,
        }
        given["admission"] = Admission()
        session = cast(
            RunSession,
            SimpleNamespace(
                workers=workers, display=display, journal=noted, forecast=forecast, **given
            ),
        )
        run_graph(session, StudyGraph(nodes=tuple(nodes), cells={}, results=None), set(), at_once)
        record = journal.read(noted.path)
        assert record is not None
        return session, {name: node.outcome for name, node in record.nodes.items()}

    def report_node_end(session: RunSession, node: GraphNode, outcome: Any) -> str:
        session.journal.ended(node.name, outcome)
        return ""

    return run


def test_as_many_nodes_are_in_flight_as_are_asked_for(run: Callable[..., Any]):
    together = threading.Barrier(200, timeout=60)
    nodes = [cell(f"cell {i}") for i in range(200)]
    _, ended = run(nodes, lambda node: together.wait() and None, 200)
    assert set(ended.values()) == {"made"}
    assert not together.broken


def test_the_longest_chain_of_work_begins_first(run: Callable[..., Any]):
    short, head, long, lone = cell("short"), cell("head"), cell("long"), cell("lone")
    tail = cell("tail", head)
    expected, order = TimeEstimates(), list[str]()
    for node, seconds in ((short, 1), (head, 2), (tail, 9), (long, 8), (lone, 10)):
        expected.learn(node.steps[0], seconds)
    run(
        [short, head, long, lone, tail],
        lambda node: order.append(node.name),
        1,
        expected=expected,
    )
    assert order == ["head", "lone", "tail", "long", "short"]


def test_a_lost_worker_is_tried_again_and_a_failure_is_not(run: Callable[..., Any]):
    tried: list[str] = []

    def make(node: GraphNode) -> None:
        tried.append(node.name)
        if node.name == "lost" and tried.count("lost") < 3:
            raise RayWorkerLostError("it died")
        if node.name == "broken":
            raise StepFailedError("no such file")

    session, ended = run([cell("lost"), cell("broken")], make, 1, retries=2)
    assert ended == {"lost": "made", "broken": "failed"}
    assert sorted(tried) == ["broken", "lost", "lost", "lost"]
    assert session.failures == {"broken": "no such file"}


def test_a_worker_lost_too_often_is_a_failure(run: Callable[..., Any]):
    def make(node: GraphNode) -> None:
        raise RayWorkerLostError("it died")

    session, ended = run([cell("lost")], make, 1, retries=1)
    assert ended == {"lost": "failed"}
    assert session.failures == {"lost": "it died"}


def test_what_is_held_back_has_neither_failed_nor_run(run: Callable[..., Any]):
    def make(node: GraphNode) -> None:
        raise NodeHeldError("outside 20:00-08:00 UTC")

    cells = [cell("a"), cell("b")]
    session, ended = run(cells, make, 1, holds={})
    assert ended == {"a": "not run", "b": "not run"}
    assert session.holds == dict.fromkeys(cells, "outside 20:00-08:00 UTC")
    assert not session.failures


def test_the_pieces_of_a_job_are_made_at_once_and_before_it(monkeypatch: pytest.MonkeyPatch):
    together, log, asked = threading.Barrier(3, timeout=30), list[str](), list[Any]()

    def make(name: str, keys: Any, recipes: Any, context: Any, **more: Any):
        asked.append((name, tuple(keys), context.get("piece"), more))
        if "piece" in context:
            together.wait()
            yield "step", Progress(done=1, total=2)
            yield StepOutcome(name="step", error="broken" if context["piece"][0] == 1 else "")
        else:
            yield StepOutcome(name="step")

    workers = SimpleNamespace(make=make)
    live = SimpleNamespace(
        task_run_id=lambda name: None, flow_run_id="", log=lambda text, *_, **__: log.append(text)
    )
    display = SimpleNamespace(update=lambda *_: None)
    session = cast(RunSession, SimpleNamespace(workers=workers, live=live, display=display))
    recipe = Recipe(kind="files", name="step")
    node = cell("node")
    job = StepJob(steps=node.steps, cpus=2, gpus=0.5, pieces=3)
    ends: dict[str, StepOutcome] = {}
    execute._run_job(session, node, job, [recipe.key], [recipe], ends, float("inf"))
    assert ends == {"step": StepOutcome(name="step")}
    assert sorted(piece for *_, piece, _ in asked[:3]) == [(0, 3), (1, 3), (2, 3)]
    assert asked[3][:3] == ("node", (recipe.key,), None)
    assert len({keys for _, keys, _, _ in asked}) == 4  # Each is a Ray Job of its own.
    assert all(keys[0] == recipe.key for _, keys, _, _ in asked)
    assert [more for *_, more in asked] == [{"cpus": 2, "gpus": 0.5}] * 4
    assert len(log) == 1
    assert log[0].startswith("node (2 of 3): ")


def test_a_piece_that_is_lost_has_the_node_tried_again():
    def make(name: str, keys: Any, recipes: Any, context: Any, **more: Any):
        if context.get("piece") == (0, 2):
            raise RayWorkerLostError("it died")
        yield StepOutcome(name="step")

    workers, live = SimpleNamespace(make=make), Live("")
    session = cast(RunSession, SimpleNamespace(workers=workers, live=live))
    node, recipe = cell("node"), Recipe(kind="files", name="step")
    job = StepJob(steps=node.steps, cpus=1, pieces=2)
    with pytest.raises(RayWorkerLostError, match="it died"):
        execute._run_job(session, node, job, [recipe.key], [recipe], {}, float("inf"))
