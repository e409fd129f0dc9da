"""The state of a run without a flow: real parts, on a store of the test's own."""

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from rich.console import Console

from flows.graph.eta import Forecast, TimeEstimates
from flows.graph.nodes import GraphNode, StudyGraph
from flows.run.display import Display
from flows.run.session import RunSession, RunTraces
from flows.run.trackers import Trackers
from infra.prefect.journal import Journal
from infra.prefect.page_queue import PageQueue
from infra.prefect.progress import ProgressFile
from infra.store.pins import Pin
from infra.store.store import Store

RUN = "0c0ffee0-1111-4222-8333-444455556666"
"""Id of the flow run."""


class Workers:
    """Workers whose jobs are a function of the test, with the arguments of `Workers.make`."""

    def __init__(self, make: Callable[..., Iterator[Any]] | None = None) -> None:
        self.make: Any = make
        self.capacity = 4

    def describe_devices(self, cpus: int, gpus: float) -> str:
        """See `flows.steps.workers.Workers`."""
        return f"{cpus} cores"

    def cancel(self) -> None:
        """See `flows.steps.workers.Workers`."""

    def close(self) -> None:
        """See `flows.steps.workers.Workers`."""


def session_of(
    folder: Path,
    nodes: Sequence[GraphNode],
    *,
    run_id: str = RUN,
    pages: PageQueue | None = None,
    **state: Any,
) -> RunSession:
    """Returns the state of a run of some nodes, which logs nothing unless `state` has a `log`.

    Args:
      folder: folder of its store.
      nodes: the nodes.
      run_id: id of the flow run.
      pages: pages on their way to the UI; None has them written nowhere.
      **state: fields of `RunSession`.
    """
    store, expected = Store(folder / "store"), TimeEstimates()
    values: dict[str, Any] = {
        "graph": StudyGraph(nodes=tuple(nodes), cells={}, results=None),
        "reused": set(),
        "store": store,
        "view": store,
        "expected_keys": {},
        "accepted_at_start": set(),
        "workers": Workers(),
        "display": Display(len(nodes), Console(file=io.StringIO(), width=120)),
        "traces": RunTraces(
            pin=cast(Pin, SimpleNamespace(add=lambda *keys: None)),
            journal=Journal(folder, run_id),
            pages=pages or PageQueue(""),
            trackers=Trackers((), store, ""),
            previous_runs={},
        ),
        "progress": ProgressFile(folder, run_id),
        "expected": expected,
        "forecast": Forecast(expected, nodes),
        "log": lambda text, failed: None,
    }
    return RunSession(**{**values, **state})
