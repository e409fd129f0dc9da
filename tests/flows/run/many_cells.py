"""A study of many cells in a simulated cluster, and what a run's own process spends on each.

    python -m tests.flows.run.many_cells FOLDER CELLS SLOTS DEATHS

The graph is the demo's, with that many transfers. The run is real: graph, look-ups, store, journal
and Prefect in this process, leases and commits in another one. Only the steps do no work, and some
of the jobs die: before a commit, or between a commit and its report. A second run then reuses
everything. At the end, the entries in store, journal and UI are counted.
"""

import collections
import contextlib
import dataclasses
import itertools
import json
import multiprocessing
import os
import queue
import random
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from flows.graph.graph import StudyGraph, graph_of
from flows.steps import worker
from flows.steps.kind import StepContext
from flows.steps.registry import KINDS
from flows.steps.worker import StepOutcome
from flows.study.load import load
from flows.study.study import StudyConfig
from infra.prefect.settings import apply
from infra.progress import Progress
from infra.ray.errors import RayWorkerLostError
from infra.store.manifest import Recipe
from infra.store.store import Store


def nothing(work: StepContext) -> Iterator[Progress]:
    """Makes an artifact of a few bytes, which are different for every step."""
    (work.out / "made").write_text(
        f"{work.seed} {sorted((r, a.key) for r, a in work.artifacts.items())} {work.config}"
    )
    work.counts.update(score=50.0, num=1)
    yield Progress(done=1, total=1)


def without_work() -> None:
    """Replaces the work of every kind of step in this process by `nothing`."""
    for name, kind in KINDS.items():
        KINDS[name] = dataclasses.replace(kind, make=nothing, make_together=None)


def study_of(cells: int) -> tuple[StudyConfig, StudyGraph]:
    """Returns the demo with at least `cells` transfers, and its graph; all jobs go to workers."""
    pretrained = -(-cells // 800)
    asked = f"num_seeds={-(-cells // (8 * pretrained))}", f"num_pretrain_seeds={pretrained}"
    config = load(overrides=[*asked, "budgets=[256]", "compute.retries=5"])
    graph = graph_of(config, "evaluate")
    nodes = []
    for node in graph.nodes:
        jobs = tuple(dataclasses.replace(job, cpus=1) for job in node.jobs)
        nodes.append(dataclasses.replace(node, jobs=jobs))
    return config, dataclasses.replace(graph, nodes=tuple(nodes))


class SimulatedCluster:
    """A cluster whose workers are threads of one process; see `flows.steps.workers.Workers`.

    Args:
      store: address of the store [URI].
      slots: number of jobs that run at the same time.
      deaths: share of the jobs that die.
    """

    def __init__(self, store: str, slots: int, deaths: float) -> None:
        self.capacity = slots
        self._lost: dict[str, list[str]] = {}
        self._streams: dict[int, queue.SimpleQueue[Any]] = {}
        self._numbers, self._sending = itertools.count(), threading.Lock()
        spawn = multiprocessing.get_context("spawn")
        self._link, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, store, slots, deaths))
        self._process.start()
        theirs.close()
        threading.Thread(target=self._receive, daemon=True).start()

    def describe_devices(self, cpus: int, gpus: float) -> str:
        """Returns what a job computes on, in words."""
        return f"{cpus} simulated cores"

    def make(
        self,
        name: str,
        keys: Sequence[str],
        recipes: Sequence[Recipe],
        context: Mapping[str, Any],
        *,
        cpus: int,
        gpus: float,
    ) -> Iterator[tuple[str, Progress] | StepOutcome]:
        """Makes the steps of a job on some slot."""
        token, lost = uuid.uuid4().hex, self._lost.setdefault(name, [])
        number, items = next(self._numbers), queue.SimpleQueue[Any]()
        self._streams[number] = items
        with self._sending:
            self._link.send((number, recipes, dict(context), token, tuple(lost)))
        while (item := items.get()) is not None:
            if item == "lost":
                lost.append(token)
                raise RayWorkerLostError(f"the worker of {name!r} died")
            yield item
        del self._streams[number]

    def cancel(self) -> None:
        """Does nothing: no job outlives this process."""

    def close(self) -> None:
        """Ends the cluster."""
        with self._sending:
            self._link.send(None)
        self._process.join()

    def _receive(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                number, item = self._link.recv()
                self._streams[number].put(item)


def _serve(link: Connection, store: str, slots: int, deaths: float) -> None:
    """Runs jobs until the driver says that all are done."""
    without_work()
    sending, dead = threading.Lock(), []

    def send(number: int, item: Any) -> None:
        with sending:
            link.send((number, item))

    def run(number: int, recipes: Any, context: Any, token: str, lost: Any) -> None:
        dies = random.random() < deaths
        # A step yields two items, its progress and its end; the first comes before the commit.
        last = random.randrange(2 * len(recipes))
        items = worker.make(store, recipes, context, token, lost)
        for count, item in enumerate(items):
            if dies and count == last:
                # Kept unfinished: closing the iterator would release its leases, which a dead
                # worker does not do.
                dead.append(items)
                return send(number, "lost")
            send(number, item)
        send(number, None)

    with ThreadPoolExecutor(slots) as pool:
        while (job := link.recv()) is not None:
            pool.submit(run, *job)
    # A normal return would close the dead jobs' iterators, which release their leases.
    os._exit(0)


def spend(cells: int, slots: int, deaths: float, store: Store) -> tuple[Any, float]:
    """Runs a study of `cells` cells; returns its result and this process's processor time [s]."""
    from prefect import flow

    from flows.graph.explain import Explanation
    from flows.run.request import RunRequest
    from flows.run.run import Run
    from infra.prefect.rows import flush, settle_ended

    # The flow of `parcel run` with one part exchanged: cells are not computed, but what their
    # processes would say arrives, so what is left is the cost of driving them.
    config, graph = study_of(cells)
    run = Run(
        RunRequest(config=config, until="evaluate"),
        store,
        passes=[Explanation(store, graph)],
        workers=SimulatedCluster(store.uri, slots, deaths),
    )

    @flow(name="study", persist_result=False)
    def study() -> Any:
        return run.execute()

    # The server is a process of its own, measured apart: on a real cluster it is elsewhere.
    began = os.times()
    with (store.state / "driver.log").open("w") as log, contextlib.redirect_stdout(log):
        study(return_state=True)
        flush()
        settle_ended(store)
    return run.result, sum(os.times()[:2]) - sum(began[:2])


def problems(cells: int, store: Store, flow_run_id: str) -> list[str]:
    """Returns messages about a run's lost or doubled cells, in store, journal and UI."""
    from prefect.client.orchestration import get_client

    from infra.prefect import journal
    from infra.prefect.rows import task_runs_of

    _, graph = study_of(cells)
    found = []
    names = collections.Counter(artifact.manifest.name for artifact in store.artifacts())
    if names != collections.Counter(step.name for step in graph.steps):
        found.append(f"{len(graph.steps)} steps left {names.total()} artifacts")
    journals = [path for path in (store.state / "runs").rglob(f"{flow_run_id}.jsonl")]
    record = journal.read_journal(journals[0])
    assert record is not None
    # If a worker died between a commit and its report, the next one found the artifact: "reused".
    ended = {name for name, node in record.nodes.items() if node.outcome in ("made", "reused")}
    if ended != {node.name for node in graph.nodes}:
        found.append(f"the journal has {len(ended)} of {len(graph.nodes)} nodes as ended well")
    with get_client(sync_client=True) as client:
        rows = collections.Counter(
            (row.name, row.state_name) for row in task_runs_of(client, uuid.UUID(flow_run_id))
        )
    completed = sum(state == "Completed" for _, state in rows.elements())
    if {completed, len(rows), rows.total()} != {len(graph.nodes)}:
        found.append(
            f"the UI has {rows.total()} rows, {len(rows)} different and {completed} completed, of "
            f"{len(graph.nodes)} nodes"
        )
    return found


def measure(cells: int, slots: int, deaths: float, folder: Path) -> dict[str, float]:
    """Returns the driver's processor time per cell, made and reused [ms].

    Args:
      cells: least number of cells.
      slots: slots of the simulated cluster.
      deaths: share of the jobs that die.
      folder: folder of the store.

    Raises:
      RuntimeError: if anything was lost or doubled.
    """
    without_work()
    store = Store(folder)
    apply(store.state)
    from infra.prefect.server import server_of

    with server_of(store.state):
        new, made = spend(cells, slots, deaths, store)
        wrong = problems(cells, store, new.flow_run_id)
        again, reused = spend(cells, slots, deaths, store)
    if again.made or again.failed:
        wrong.append(f"the second run made {again.made} nodes")
    if wrong:
        raise RuntimeError("; ".join(wrong))
    return {"made": 1e3 * made / cells, "reused": 1e3 * reused / cells}


if __name__ == "__main__":
    place, *numbers = sys.argv[1:]
    print(json.dumps(measure(int(numbers[0]), int(numbers[1]), float(numbers[2]), Path(place))))
