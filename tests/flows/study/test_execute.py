"""Nodes as Prefect tasks: their states, rows, retries and pages, on a real server."""

import dataclasses
import io
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from flows.steps.worker import StepOutcome
from flows.study import execute
from flows.study.display import Display
from flows.study.eta import Forecast, TimeEstimates
from flows.study.execute import RunSession, StepFailedError, run_graph
from flows.study.nodes import GraphNode, StepJob, StudyGraph
from flows.study.sweep_limits import Admission, NodeHeldError
from infra.prefect import journal
from infra.prefect.journal import Journal
from infra.prefect.progress import ProgressFile
from infra.prefect.progress import read as read_progress
from infra.progress import COMPILING, Progress
from infra.ray.errors import RayWorkerLostError
from infra.store.manifest import Recipe
from tests.flows.study.test_run_order import node


class Outcome:
    """A run of a few nodes: the session, the journal's record, and the rows on the server."""

    def __init__(self, session: RunSession, record: journal.RunRecord, run: uuid.UUID) -> None:
        self.session, self.run = session, run
        self.outcomes = {name: node.outcome for name, node in record.nodes.items()}

    def rows(self) -> dict[str, Any]:
        """Returns the rows of the run, by name, once each of its nodes has one."""
        from prefect.client.orchestration import get_client

        from infra.prefect.rows import flush, rows_of

        flush()
        deadline = time.monotonic() + 60
        while True:
            with get_client(sync_client=True) as client:
                rows = list(rows_of(client, self.run))
            if all(row.state is not None and row.state.is_final() for row in rows) and rows:
                return {row.name: row for row in rows}
            assert time.monotonic() < deadline, rows
            time.sleep(0.2)


@pytest.fixture
def run(
    served_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Runs nodes by a function, within a flow."""
    from prefect import flow
    from prefect.runtime import flow_run

    from infra.prefect.page_queue import PageQueue

    def run(
        nodes: list[GraphNode], make: Callable[[GraphNode], Any], *, reused: int = 0, **more: Any
    ) -> Outcome:
        monkeypatch.setattr(execute, "_run_node", lambda session, node: make(node) or "made")
        monkeypatch.setattr(execute, "_report_node_end", report_node_end)
        monkeypatch.setattr(execute, "_find_reused_artifacts", lambda session, node: True)
        monkeypatch.setattr(execute, "_report_reused_nodes", lambda session, nodes: None)
        monkeypatch.setattr(execute, "_RETRY_AFTER", 0.0)
        outcomes: list[Outcome] = []

        @flow(name="study")
        def study() -> None:
            run_id = cast(str, flow_run.id)
            noted = Journal(tmp_path, run_id)
            values = {"retries": 0, "failures": {}, "causes": {}, "holds": {}, **more}
            values |= {"mended": set(), "mending": threading.RLock(), "artifacts": {}}
            with PageQueue(run_id) as pages:
                session = cast(
                    RunSession,
                    SimpleNamespace(
                        workers=SimpleNamespace(leave=lambda: None, at_once=4),
                        display=SimpleNamespace(finish=lambda *_, **__: None),
                        journal=noted,
                        progress=ProgressFile(tmp_path, run_id),
                        pages=pages,
                        expected=TimeEstimates(),
                        forecast=Forecast(TimeEstimates(), nodes),
                        admission=Admission(),
                        prepare_at_once=4,
                        log=lambda text, failed=False: RunSession.log(session, text, failed=failed),
                        fail=lambda node, why: RunSession.fail(session, node, why),
                        **values,
                    ),
                )
                graph = StudyGraph(nodes=tuple(nodes), cells={}, results=None)
                run_graph(session, graph, set(nodes[:reused]))
            record = journal.read(noted.path)
            assert record is not None
            outcomes.append(Outcome(session, record, uuid.UUID(run_id)))

        study()
        return outcomes[0]

    def report_node_end(session: RunSession, node: GraphNode, outcome: Any) -> tuple[str, float]:
        session.journal.ended(node.name, outcome)
        return "score 45.1", 2.0

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


class Shelf:
    """A store of artifacts by key, some of them damaged; steps are their own keys."""

    def __init__(self, *keys: str) -> None:
        self.keys, self.makes = {*keys}, list[str]()

    def find(self, key: str) -> Any:
        return key in self.keys or None

    find_pruned = find

    def mend(self, nodes: list[GraphNode], last: GraphNode, damaged: set[str], spoils: int) -> str:
        """Runs the last node where files of `damaged` turn out damaged `spoils` times each."""
        left = dict.fromkeys(damaged, spoils)
        session = cast(
            RunSession,
            SimpleNamespace(
                store=self,
                artifacts={s: SimpleNamespace(key=s.name) for n in nodes for s in n.steps},
                foreseen={s: s.name for n in nodes for s in n.steps},
                mended=set(),
                mending=threading.RLock(),
                lock=threading.Lock(),
                display=SimpleNamespace(print_event=lambda *_: None, finish=lambda *_, **__: None),
                progress=SimpleNamespace(end=lambda _: None),
                admission=Admission(),
                log=lambda *_, **__: None,
            ),
        )

        def make(session: RunSession, node: GraphNode) -> Any:
            (step,) = node.steps
            for read in step.inputs.values():
                if left.get(read.name, 0) and read.name in self.keys:
                    left[read.name] -= 1
                    self.keys.remove(read.name)
                if read.name not in self.keys:
                    raise StepFailedError(f"{read.name} is damaged")
            assert step not in session.foreseen or node is last
            self.keys.add(step.name)
            self.makes.append(step.name)
            return "made"

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(execute, "_run_node", make)
            makers = {step: node for node in nodes for step in node.steps}
            return execute._run_mended(session, last, makers)


def chain() -> list[GraphNode]:
    """Three nodes, each of which reads the one before."""
    first = node("tokenizer")
    second = node("stage1", first)
    return [first, second, node("transfer", second)]


def test_what_a_node_reads_and_is_damaged_is_made_again_with_what_that_reads():
    nodes = chain()
    shelf = Shelf("tokenizer", "stage1")
    assert shelf.mend(nodes, nodes[-1], {"tokenizer", "stage1"}, spoils=1) == "made"
    assert shelf.makes == ["tokenizer", "stage1", "transfer"]


def test_what_is_damaged_twice_is_not_made_for_ever():
    nodes = chain()
    shelf = Shelf("tokenizer", "stage1")
    with pytest.raises(StepFailedError, match="stage1 is damaged"):
        shelf.mend(nodes, nodes[-1], {"stage1"}, spoils=2)
    assert shelf.makes == ["stage1"]


def test_what_waits_for_a_failed_node_is_not_run_and_names_that_node():
    stage = node("stage1")
    transfer = node("transfer", stage)
    score = node("score", transfer)
    session = cast(
        RunSession,
        SimpleNamespace(
            artifacts={},
            failures={},
            causes={},
            holds={},
            look_up=lambda step: RunSession.look_up(session, step),
        ),
    )
    RunSession.fail(session, stage, "out of memory")
    for one in (transfer, score):
        with pytest.raises(NodeHeldError, match=r"^since stage1 failed$") as error:
            execute._run_node(session, one)
        session.holds[one] = str(error.value)
    assert session.failures == {"stage1": "out of memory"}


def test_a_failure_names_its_node_once():
    one = node("stage1")

    def look_up(step: Any) -> None:
        raise StepFailedError("out of memory")

    session = cast(RunSession, SimpleNamespace(look_up=look_up))
    with pytest.raises(StepFailedError, match=r"^out of memory$"):
        execute._run_node(session, one)


def test_a_failure_without_damage_stays_one():
    nodes = chain()
    shelf = Shelf("tokenizer")
    shelf.keys.add("stage1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shelf, "find", lambda key: True)
        with pytest.raises(StepFailedError, match="stage1 is damaged"):
            shelf.mend(nodes, nodes[-1], {"stage1"}, spoils=1)
    assert shelf.makes == []


def test_the_pieces_of_a_job_are_made_at_once_and_before_it():
    together, log, asked = threading.Barrier(3, timeout=30), list[str](), list[Any]()

    def make(name: str, keys: Any, recipes: Any, context: Any, **more: Any):
        asked.append((name, tuple(keys), context.get("piece"), more))
        if "piece" in context:
            together.wait()
            yield "step", Progress(done=1, total=2)
            yield StepOutcome(name="step", error="broken" if context["piece"][0] == 1 else "")
        else:
            yield StepOutcome(name="step")

    session = cast(
        RunSession,
        SimpleNamespace(
            workers=SimpleNamespace(make=make),
            display=SimpleNamespace(begin=lambda *_: None, update=lambda *_: None),
            expected=TimeEstimates(),
            artifacts={},
            begun=set(),
            log=lambda text, **_: log.append(text),
        ),
    )
    recipe, one = Recipe(kind="files", name="step"), node("node")
    job = StepJob(steps=one.steps, cpus=2, gpus=0.5, pieces=3)
    one = dataclasses.replace(one, jobs=(job,))
    ends: dict[str, StepOutcome] = {}
    execute._run_job(session, one, job, [recipe.key], [recipe], ends, float("inf"))
    assert ends == {"step": StepOutcome(name="step")}
    assert sorted(piece for *_, piece, _ in asked[:3]) == [(0, 3), (1, 3), (2, 3)]
    assert asked[3][:3] == ("node", (recipe.key,), None)
    assert len({keys for _, keys, _, _ in asked}) == 4  # Each is a Ray Job of its own.
    assert all(keys[0] == recipe.key for _, keys, _, _ in asked)
    assert [more for *_, more in asked] == [{"cpus": 2, "gpus": 0.5}] * 4
    assert log[0] == "node begins"
    assert len(log) == 2
    assert log[1].startswith("node (2 of 3): ")


def test_a_step_is_told_from_its_beginning_on_and_when_it_compiles(tmp_path: Path):
    told: list[str] = []
    run = "0c0ffee0-1111-4222-8333-444455556666"
    progress = ProgressFile(tmp_path, run)

    def make(name: str, keys: Any, recipes: Any, context: Any, **more: Any):
        told.append("a worker is free")
        yield "step", Progress(done=0, total=0)
        yield "step", Progress(done=0, total=100, note=COMPILING)
        yield "step", Progress(done=0, total=100, note=COMPILING)  # Reports may come again.
        (at_work,) = read_progress(tmp_path, run).values()  # Within a second: the first is there.
        assert (at_work.step, at_work.devices, at_work.done) == ("step", "2 cores", 0)
        told.append("the first update")
        yield "step", Progress(done=40, total=100, note="loss 2.5")
        yield StepOutcome(name="step")

    workers = SimpleNamespace(make=make, describe_devices=lambda cpus, gpus: f"{cpus} cores")
    display = Display(1, Console(file=io.StringIO(), force_terminal=True, width=120))
    session = cast(
        RunSession,
        SimpleNamespace(
            workers=workers,
            display=display,
            progress=progress,
            expected=TimeEstimates(),
            artifacts={},
            begun=set(),
            log=lambda text, **_: told.append(text),
        ),
    )
    one, recipe = node("node"), Recipe(kind="files", name="step")
    job = StepJob(steps=one.steps, cpus=2)
    one = dataclasses.replace(one, jobs=(job,))
    execute._run_job(session, one, job, [recipe.key], [recipe], {}, float("inf"))
    assert told == [
        "a worker is free",
        "node begins",
        "step: compiles",
        "the first update",
    ]


def test_a_piece_that_is_lost_has_the_node_tried_again():
    def make(name: str, keys: Any, recipes: Any, context: Any, **more: Any):
        if context.get("piece") == (0, 2):
            raise RayWorkerLostError("it died")
        yield StepOutcome(name="step")

    session = cast(
        RunSession,
        SimpleNamespace(
            workers=SimpleNamespace(make=make),
            display=SimpleNamespace(begin=lambda *_: None),
            expected=TimeEstimates(),
            artifacts={},
            begun=set(),
            log=lambda *_: None,
        ),
    )
    one, recipe = node("node"), Recipe(kind="files", name="step")
    job = StepJob(steps=one.steps, cpus=1, pieces=2)
    with pytest.raises(RayWorkerLostError, match="it died"):
        execute._run_job(session, one, job, [recipe.key], [recipe], {}, float("inf"))
