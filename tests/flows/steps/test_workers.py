"""Workers: what the next try of a lost one is told, and jobs that were found under way."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flows.steps import worker
from flows.steps.job import JobReport, command
from flows.steps.workers import AlreadyRunning, JobWorkers, LocalWorkers
from infra.progress import Progress
from infra.ray.cluster import Cluster
from infra.ray.errors import RayWorkerLostError
from infra.ray.jobs import JobServer, RayJob
from infra.store.manifest import Recipe
from infra.store.store import JOBS, Attempt, Store

RECIPE = Recipe(kind="files", name="cell", code="c0de")
OTHER = Recipe(kind="files", name="other", seed=1, code="c0de")


def test_the_next_try_of_a_lost_worker_is_told_whose_lease_is_lost(tmp_path: Path):
    calls: list[tuple[str, tuple[str, ...]]] = []

    def stream(function: Any, *args: Any, **resources: Any) -> Iterator[Any]:
        *_, token, lost, alone = args
        assert alone
        calls.append((token, lost))
        if len(calls) < 3:
            raise RayWorkerLostError("it died")
        yield worker.StepOutcome(name="cell")

    cluster = cast(Cluster, SimpleNamespace(stream=stream, num_cpus=1))
    workers = LocalWorkers(cluster, Store(tmp_path))
    for _ in range(2):
        with pytest.raises(RayWorkerLostError):
            list(workers.make("cell", [RECIPE.key], [RECIPE], {}, cpus=1, gpus=0))
    assert list(workers.make("cell", [RECIPE.key], [RECIPE], {}, cpus=1, gpus=0))
    first, second, third = (token for token, _ in calls)
    assert [lost for _, lost in calls] == [(), (first,), (first, second)]
    assert third not in (first, second)


class Server:
    """A job server whose only job goes on as its test says."""

    def __init__(self, *ends: str | None) -> None:
        self.job = RayJob(id="cell-2", cluster="now", attempt=2)
        self.given_up = 0
        self.ends, self.asked = list(ends), list[str]()
        self.command, self.run = "", ""
        self.stopped: list[RayJob] = []

    def submit(self, work: str, command: Any, **resources: Any) -> RayJob:
        self.asked.append(work)
        self.command = command(self.job)
        self.run = resources["run"]
        return self.job

    def end_reason(self, job: RayJob) -> str | None:
        return self.ends.pop(0)

    def timed_out_unscheduled(self, job: RayJob) -> bool:
        self.given_up -= 1
        return self.given_up >= 0

    def wait(self, waiting: int) -> None:
        assert waiting == 1

    def stop(self, jobs: list[RayJob]) -> None:
        self.stopped += jobs

    def run_jobs(self, run: str) -> list[RayJob]:
        return [self.job] if run == self.run else []


def test_a_job_tells_through_the_store_and_one_that_tells_no_more_is_lost(tmp_path: Path):
    store, server = Store(tmp_path), Server(None, None, "died with its node")
    workers = JobWorkers(cast(JobServer, server), store)
    told = workers.make("cell", [RECIPE.key], [RECIPE], {}, cpus=1, gpus=0)
    report = JobReport(step="cell", progress=Progress(done=1, total=3, loss=0.5))
    report.write(store.volatile, server.job.name)
    assert next(told) == ("cell", Progress(done=1, total=3, loss=0.5))
    words = server.command.split(" ")
    assert words[:3] == ["python", "-m", "flows.steps.job"]
    assert words[-1] == "cell-1.now"  # Its lease need not lapse.
    with pytest.raises(RayWorkerLostError, match="worker of 'cell' died"):
        list(told)


def test_a_job_that_found_no_free_node_in_time_is_submitted_again(tmp_path: Path):
    server = Server("failed: it waited", "failed: it waited", "failed: killed")
    server.given_up = 2
    workers = JobWorkers(cast(JobServer, server), Store(tmp_path))
    with pytest.raises(RayWorkerLostError, match="killed"):
        list(workers.make("cell", [RECIPE.key], [RECIPE], {}, cpus=1, gpus=0))
    assert len(server.asked) == 3


def test_a_job_found_under_way_is_told_and_one_submitted_knows_its_run(tmp_path: Path):
    server = Server("succeeded")
    server.job = RayJob(id="cell-2", cluster="now", attempt=2, reattached=True)
    JobReport(is_ended=True).write(Store(tmp_path).volatile, server.job.name)
    workers = JobWorkers(cast(JobServer, server), Store(tmp_path))
    context = {"prefect": {"flow_run_id": "a-run"}}
    told = list(workers.make("cell", [RECIPE.key], [RECIPE], context, cpus=1, gpus=0))
    assert told == [AlreadyRunning(by="Ray Job cell-2")]
    assert server.run == "a-run"


def test_a_job_found_under_way_may_have_been_asked_for_less(tmp_path: Path):
    store = Store(tmp_path)
    with store.lock(OTHER.key):  # Somebody else made it meanwhile.
        Attempt(store, OTHER).commit({})
    server = Server("succeeded")
    end = worker.StepOutcome(name="cell", error="no such thing", traceback="line 1")
    JobReport(ends=[end], is_ended=True).write(store.volatile, server.job.name)
    workers = JobWorkers(cast(JobServer, server), store)
    keys = [RECIPE.key, OTHER.key]
    told = list(workers.make("cell", keys, [RECIPE, OTHER], {}, cpus=1, gpus=0))
    assert told == [end, worker.StepOutcome(name="other", reused=True)]


def test_a_job_is_stopped_once_no_living_run_waits_for_it(tmp_path: Path):
    store, server = Store(tmp_path), Server(*[None] * 5)
    server.job = RayJob(id="cell-1", cluster="now", attempt=1)
    report = JobReport(step="cell", progress=Progress(done=1, total=3, loss=0.5))
    report.write(store.volatile, server.job.name)

    def waiting(run: str) -> JobWorkers:
        workers = JobWorkers(cast(JobServer, server), store)
        context = {"prefect": {"flow_run_id": run}}
        items = workers.make("cell", [RECIPE.key], [RECIPE], context, cpus=1, gpus=0)
        assert next(items) == ("cell", report.progress)
        streams.append(items)
        return workers

    streams: list[Iterator[Any]] = []
    with store.pin_run("first"), store.pin_run("second"):
        first, second = waiting("first"), waiting("second")
        first.cancel()
        assert server.stopped == []
        # Whoever submitted it, and in whichever order they end.
        assert second.stop_run_jobs("second") == ["cell-1"]
        server.stopped.clear()
        first, second = waiting("first"), waiting("second")
        second.cancel()
        assert server.stopped == []
        first.cancel()
        assert server.stopped == [server.job]
    with store.pin_run("first"):
        waiting("first").cancel()  # A run that died while waiting waits no more.
        assert server.stopped == [server.job] * 2


def test_the_same_step_of_another_store_is_another_job(tmp_path: Path):
    asked = set()
    for name in ("one", "two"):
        store, server = Store(tmp_path / name), Server("succeeded")
        JobReport(is_ended=True).write(store.volatile, server.job.name)
        workers = JobWorkers(cast(JobServer, server), store)
        list(workers.make("cell", [RECIPE.key], [RECIPE], {}, cpus=1, gpus=0))
        asked |= set(server.asked)
    assert len(asked) == 2
    assert all(work.startswith(f"{RECIPE.key}-") for work in asked)


def test_the_work_of_a_job_outlives_the_same_job_of_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from flows.steps import job

    store, made = Store(tmp_path), []
    first, _ = (command(store, "cell-1.now", [], [RECIPE], {"run": run}) for run in "ab")
    monkeypatch.setattr("sys.argv", first.split(" ")[2:])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(job, "make", lambda *words: made.append(words[2]) or iter(()))
    monkeypatch.setattr("os._exit", sys.exit)
    with pytest.raises(SystemExit):
        job.main()
    assert made == [{"run": "a"}]


def test_work_that_was_changed_in_the_store_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from flows.steps import job

    store = Store(tmp_path)
    words = command(store, "cell-1.now", [], [RECIPE], {}).split(" ")
    store.volatile.put(f"{JOBS}/cell-1.now/work-{words[-1]}", b"something else")
    monkeypatch.setattr("sys.argv", words[2:])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit, match="is not what was submitted"):
        job.main()
