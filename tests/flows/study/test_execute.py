"""Running a graph: how many nodes at once, and what the next try of a lost one is told."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.task_runners import ThreadPoolTaskRunner

from flows.steps import worker
from flows.steps.kind import Step
from flows.study.execute import Session, _run_job, run_graph
from flows.study.graph import Graph, Job, Node
from infra.prefect.server import server_of
from infra.ray.cluster import WorkerLost
from infra.store.manifest import Recipe
from infra.store.store import Store

RECIPE = Recipe(kind="files", name="cell", code="c0de")


def session_of(store: Any, stream: Callable[..., Iterator[Any]]) -> Session:
    ignored = SimpleNamespace(update=lambda *_: None)
    return cast(
        Session,
        SimpleNamespace(
            store=store, cluster=SimpleNamespace(stream=stream), lost={}, display=ignored
        ),
    )


def test_the_next_try_of_a_lost_worker_is_told_whose_lease_is_lost(tmp_path: Path):
    calls: list[tuple[str, tuple[str, ...]]] = []

    def stream(function: Any, *args: Any, **resources: Any) -> Iterator[Any]:
        *_, token, lost = args
        calls.append((token, lost))
        if len(calls) < 3:
            raise WorkerLost("its node died")
        yield worker.Made(name="cell")

    session, job = session_of(Store(tmp_path), stream), Job(steps=(), cpus=1)
    node = Node(name="cell", jobs=(job,))
    for _ in range(2):
        with pytest.raises(WorkerLost):
            _run_job(session, node, job, [RECIPE], {})
    _run_job(session, node, job, [RECIPE], {})
    first, second, third = (token for token, _ in calls)
    assert [lost for _, lost in calls] == [(), (first,), (first, second)]
    assert third not in (first, second)


@pytest.mark.slow
def test_as_many_nodes_are_in_flight_as_the_runner_has_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from flows.study import execute

    many = 200
    together = threading.Barrier(many, timeout=120)
    monkeypatch.setattr(execute, "_run_and_tell", lambda session, node: str(together.wait()))
    nodes = tuple(
        Node(name=f"cell {i}", jobs=(Job(steps=(Step(kind="files", name=f"cell {i}"),), cpus=1),))
        for i in range(many)
    )
    quiet = SimpleNamespace(submitted=lambda *_: None)
    session = cast(Session, SimpleNamespace(study="many", retries=0, journal=quiet))

    @flow
    def study() -> None:
        with ThreadPoolTaskRunner[Any](max_workers=many) as runner:
            run_graph(session, Graph(nodes=nodes, cells={}, results=None), set(), runner)

    with server_of(tmp_path) as server, temporary_settings({PREFECT_API_URL: server.api}):
        study()
    assert not together.broken
