"""Two runs that need the same step on a cluster: each keeps its own window, and its own end."""

import shlex
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.steps.job import waiting_runs
from flows.steps.kinds.files import FilesSpec
from flows.steps.registry import code_digest
from flows.steps.worker import StepOutcome
from flows.steps.workers import AlreadyRunning, JobWorkers
from infra.ray.errors import RayWorkerLostError
from infra.ray.jobs import JobServer, RayJob
from infra.source_code import checkout
from infra.store.manifest import Recipe
from infra.store.store import Store
from tests.ray_nodes import Head, head_of, job_servers

pytestmark = pytest.mark.slow

CONFIG: dict[str, Any] = {"files": [["a.txt", "0" * 64, 1]]}


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with head_of(tmp_path_factory.mktemp("node"), "--num-cpus=1") as made:
        yield made


@pytest.fixture
def connect(head: Head, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], JobServer]]:
    with job_servers(head, monkeypatch, node_wait=60) as connect:
        yield connect


class Run:
    """A run of one step, in a thread; `items` are what it has seen, `error` how it failed."""

    def __init__(self, name: str, server: JobServer, store: Store, **context: Any) -> None:
        self.items: list[Any] = []
        self.error: BaseException | None = None
        self.store, self.workers = store, JobWorkers(server, store)
        self._context = {"prefect": {"flow_run_id": name}, **context}
        source = store.save_source(checkout().files)
        code = code_digest("files", CONFIG)
        self.recipe = Recipe(
            kind="files", name="cell", config=FilesSpec(**CONFIG), code=code, source=source
        )
        self._thread = threading.Thread(target=self._pull, daemon=True)
        self._thread.start()

    def _pull(self) -> None:
        try:
            for item in self.workers.make(
                "cell", [self.recipe.key], [self.recipe], self._context, cpus=1, gpus=0
            ):
                self.items.append(item)
        except RayWorkerLostError as error:
            self.error = error

    def wait_for_job(self) -> RayJob:
        """Returns the job that it waits for, once it has noted that in the store."""
        deadline = time.monotonic() + 120
        while True:
            for job, run in list(self.workers._jobs.values()):
                if run in waiting_runs(self.store.volatile, job.name):
                    return job
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def end(self) -> None:
        self._thread.join(240)
        assert not self._thread.is_alive()


def filled(server: JobServer, work: str) -> RayJob:
    """A job that takes the whole cluster until it is stopped."""
    wait = shlex.join(["python", "-c", "while True: __import__('time').sleep(1)"])
    job = server.submit(work, lambda job: wait, num_cpus=1)
    while server._job_info(job).status != "RUNNING":
        server.wait(1)
    return job


@pytest.mark.deep
def test_a_run_does_not_take_over_the_window_of_the_run_whose_job_it_joined(
    connect: Callable[[], JobServer], tmp_path: Path
):
    store, server = Store(tmp_path / "store"), connect()
    other = filled(server, "window")
    closes = time.time() + 4
    sweep = Run("sweep", connect(), store, closes=closes)
    job = sweep.wait_for_job()
    run = Run("run", connect(), store)
    assert run.wait_for_job() == job
    time.sleep(max(0.0, closes - time.time()))  # The window is real, and so is its end.
    server.stop([other])
    for one in (sweep, run):
        one.end()
    assert sweep.items == [StepOutcome(name="cell", held=True)]
    joined, *_, end = run.items
    assert joined == AlreadyRunning(by=f"Ray Job {job.id}")
    assert end == StepOutcome(name="cell")
    assert store.find(run.recipe.key)


@pytest.mark.parametrize("both", [False, True])
def test_ctrl_c_stops_a_job_only_if_no_other_run_waits_for_it(
    both: bool, connect: Callable[[], JobServer], tmp_path: Path
):
    store, server = Store(tmp_path / "store"), connect()
    other = filled(server, f"ctrl-c {both}")
    with store.pin_run("first"), store.pin_run("second"):
        first = Run("first", connect(), store)
        job = first.wait_for_job()
        second = Run("second", connect(), store)
        assert second.wait_for_job() == job
        first.workers.cancel()
        if both:
            second.workers.cancel()
        server.stop([other])  # Ray stops a job that waits for its turn only once that has come.
        second.end()
        first.end()
    if both:
        # Not whether its step is there: so small a step may be made before the stop arrives.
        assert "stopped" in str(second.error)
    else:
        assert second.error is None
        assert second.items[-1] == StepOutcome(name="cell")
