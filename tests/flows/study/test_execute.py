"""Running a graph: how many nodes at once."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.task_runners import ThreadPoolTaskRunner

from flows.steps.kind import Step
from flows.study.execute import Session, run_graph
from flows.study.graph import Graph, Job, Node
from infra.prefect.server import server_of


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
