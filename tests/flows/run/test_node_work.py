"""The work of a node: what fails and is not run, pieces, and what is told while a worker works."""

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.graph.nodes import GraphNode
from flows.run.limits import NodeHeldError
from flows.run.node_work import NodeWork
from flows.run.session import StepFailedError
from flows.steps.worker import StepOutcome
from infra.prefect.progress import read_progress as read_progress
from infra.progress import COMPILING, Progress
from infra.ray.errors import RayWorkerLostError
from tests.flows.run.sessions import RUN, Workers, session_of
from tests.flows.run.test_run_order import node


def piecewise(**job: Any) -> GraphNode:
    """Returns a node whose job has these fields."""
    one = node("node")
    return dataclasses.replace(one, jobs=(dataclasses.replace(one.jobs[0], **job),))


def test_what_waits_for_a_failed_node_is_not_run_and_names_that_node(tmp_path: Path):
    stage = node("stage1")
    transfer = node("transfer", stage)
    score = node("score", transfer)
    session = session_of(tmp_path, [stage, transfer, score])
    session.fail(stage, "out of memory")
    for one in (transfer, score):
        with pytest.raises(NodeHeldError, match=r"^since stage1 failed$") as error:
            NodeWork(session).make(one)
        session.holds[one] = str(error.value)
    assert session.failures == {"stage1": "out of memory"}


def test_a_failure_names_its_node_once(tmp_path: Path):
    one = node("stage1")

    def make(name: str, *job: Any, **more: Any) -> Iterator[StepOutcome]:
        yield StepOutcome(name="stage1", error="out of memory")

    session = session_of(tmp_path, [one], workers=Workers(make))
    with pytest.raises(StepFailedError, match=r"^out of memory$"):
        NodeWork(session).make(one)


def test_the_pieces_of_a_job_are_made_at_once_and_before_it(tmp_path: Path):
    together, lines, asked = threading.Barrier(3, timeout=30), list[str](), list[Any]()

    def make(name: str, keys: Any, recipes: Any, context: Any, **more: Any) -> Iterator[Any]:
        asked.append((name, tuple(keys), context.get("piece"), more))
        if "piece" in context:
            together.wait()
            yield "node", Progress(done=1, total=2)
            yield StepOutcome(name="node", error="broken" if context["piece"][0] == 1 else "")
        else:
            yield StepOutcome(name="node", error="so far")

    one = piecewise(cpus=2, gpus=0.5, pieces=3)
    session = session_of(
        tmp_path, [one], workers=Workers(make), log=lambda text, failed: lines.append(text)
    )
    with pytest.raises(StepFailedError, match="so far"):
        NodeWork(session).make(one)
    key = session.look_up(one.steps[0]).recipe.key
    assert sorted(piece for *_, piece, _ in asked[:3]) == [(0, 3), (1, 3), (2, 3)]
    assert asked[3][:3] == ("node", (key,), None)
    assert len({keys for _, keys, _, _ in asked}) == 4  # Each is a Ray Job of its own.
    assert all(keys[0] == key for _, keys, _, _ in asked)
    assert [more for *_, more in asked] == [{"cpus": 2, "gpus": 0.5}] * 4
    assert lines[0] == "node begins"
    assert [line.partition(": ")[0] for line in lines[1:]] == ["node (2 of 3)", "node"]


def test_a_step_is_told_from_its_beginning_on_and_when_it_compiles(tmp_path: Path):
    told: list[str] = []

    def make(name: str, keys: Any, recipes: Any, context: Any, **more: Any) -> Iterator[Any]:
        told.append("a worker is free")
        yield "step", Progress(done=0, total=0)
        yield "step", Progress(done=0, total=100, note=COMPILING)
        yield "step", Progress(done=0, total=100, note=COMPILING)  # Reports may come again.
        (at_work,) = read_progress(tmp_path, RUN).values()  # Within a second: the first is there.
        assert (at_work.step, at_work.devices, at_work.done) == ("step", "2 cores", 0)
        told.append("the first update")
        yield "step", Progress(done=40, total=100, note="loss 2.5")
        raise RayWorkerLostError("it died")

    one = piecewise(cpus=2)
    session = session_of(
        tmp_path, [one], workers=Workers(make), log=lambda text, failed: told.append(text)
    )
    with pytest.raises(RayWorkerLostError):
        NodeWork(session).make(one)
    assert told == ["a worker is free", "node begins", "step: compiles", "the first update"]


def test_a_piece_that_is_lost_has_the_node_tried_again(tmp_path: Path):
    def make(name: str, keys: Any, recipes: Any, context: Any, **more: Any) -> Iterator[Any]:
        if context.get("piece") == (0, 2):
            raise RayWorkerLostError("it died")
        yield StepOutcome(name="node")

    one = piecewise(pieces=2)
    session = session_of(tmp_path, [one], workers=Workers(make))
    with pytest.raises(RayWorkerLostError, match="it died"):
        NodeWork(session).make(one)
