"""Workers for steps with JAX: a Ray cluster on this machine, or Ray Jobs on an existing one."""

import contextlib
import dataclasses
import math
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol

from flows.steps import worker
from flows.steps.job import (
    JobReport,
    add_waiting_run,
    command,
    remove_waiting_run,
    waiting_runs,
)
from flows.steps.worker import StepOutcome
from infra.progress import Progress
from infra.ray.cluster import Cluster
from infra.ray.errors import RayWorkerLostError
from infra.ray.jobs import JobServer, RayJob
from infra.source_code import checkout
from infra.store.digest import value_sha256
from infra.store.manifest import Recipe
from infra.store.pins import living_runs
from infra.store.store import Store

_JOBS_AT_ONCE = 500
"""Most unfinished jobs on a cluster: those without room wait there, so that an autoscaler sees
them."""
_PATIENCE = 1.5
"""Longest look for other runs that wait for a job, of the 3.5 s that a process has to end [s]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AlreadyRunning:
    """Notice that the work was under way already, started by another run or by one that died.

    Attributes:
      by: who does it, in words.
    """

    by: str


class Workers(Protocol):
    """Makes steps in jobs, each job in a process of its own."""

    @property
    def capacity(self) -> int:
        """How many jobs it takes at a time."""
        ...

    def make(
        self,
        name: str,
        keys: Sequence[str],
        recipes: Sequence[Recipe],
        context: Mapping[str, Any],
        *,
        cpus: int,
        gpus: float,
    ) -> Iterator[tuple[str, Progress] | StepOutcome | AlreadyRunning]:
        """Makes the missing steps of a job; yields progress and outcomes, as `worker.make` does.

        Args:
          name: name of the job, for people.
          keys: keys of all steps of the job, missing or not.
          recipes: the missing steps.
          context: run ids of the orchestrator, for the manifests; "closes", the time after which
            no step is started [seconds since the epoch].
          cpus: number of cores.
          gpus: number of GPUs, where there are any.

        Raises:
          RayWorkerLostError: if the process died; the next call need not wait for its leases.
        """
        ...

    def describe_devices(self, cpus: int, gpus: float) -> str:
        """Describes the devices of a job that asks for some cores and GPUs."""
        ...

    def cancel(self) -> None:
        """Stops the jobs that would outlive this process, which is about to end."""
        ...

    def close(self) -> None:
        """Ends what dies with this process anyway, and wakes threads that wait in `make`."""
        ...


class LocalWorkers:
    """Tasks on a Ray cluster of this machine, which ends with the run."""

    def __init__(self, cluster: Cluster, store: Store) -> None:
        self._cluster, self._store = cluster, store
        self._lost: dict[str, list[str]] = {}
        self._is_closed = False
        self.capacity = cluster.num_cpus

    def make(
        self,
        name: str,
        keys: Sequence[str],
        recipes: Sequence[Recipe],
        context: Mapping[str, Any],
        *,
        cpus: int,
        gpus: float,
    ) -> Iterator[tuple[str, Progress] | StepOutcome | AlreadyRunning]:
        """See `Workers.make`."""
        # A step that another run on this store is making would keep a worker waiting, which could
        # make another step. So the worker leaves it, and this thread waits, which costs nothing:
        #
        #   this run      X: busy, Y made by the worker              X: looks again, reused
        #   another run   X made ........................ committed
        #
        # A process that dies leaves its lease behind, and the next attempt would wait until it
        # lapses. So each attempt has a token, and the tokens of those that died are handed on:
        # their leases are taken at once.
        #
        #   attempt 1, token a: dies    ─▶    attempt 2, token b, lost = (a,)
        context, lost = {**context, "wait": False}, self._lost.setdefault(name, [])
        while True:
            busy, token = set[str](), uuid.uuid4().hex
            order = self._store.uri, recipes, context, token, tuple(lost), True
            try:
                for item in self._cluster.stream(
                    worker.make, *order, num_cpus=cpus, num_gpus=gpus, name=name
                ):
                    if isinstance(item, StepOutcome) and item.busy:
                        busy.add(item.name)
                    else:
                        yield item
            except RayWorkerLostError:
                lost.append(token)
                raise
            recipes = [recipe for recipe in recipes if recipe.name in busy]
            if not recipes:
                return
            yield AlreadyRunning(by="a step of another run")
            self._store.wait_until_free(recipes[0].key, lambda: not self._is_closed)

    def describe_devices(self, cpus: int, gpus: float) -> str:
        """See `Workers.describe_devices`."""
        return _devices_text(*self._cluster.share(cpus, gpus))

    def cancel(self) -> None:
        """See `Workers.cancel`: no task outlives this process."""

    def close(self) -> None:
        """See `Workers.close`."""
        self._is_closed = True
        self._cluster.stop()


class JobWorkers:
    """Ray Jobs, which outlive this process; a process that needs the same work joins them."""

    def __init__(self, server: JobServer, store: Store) -> None:
        self._server, self._store = server, store
        self._jobs: dict[str, tuple[RayJob, str]] = {}
        self._changing = threading.Lock()
        self.capacity = _JOBS_AT_ONCE

    def make(
        self,
        name: str,
        keys: Sequence[str],
        recipes: Sequence[Recipe],
        context: Mapping[str, Any],
        *,
        cpus: int,
        gpus: float,
    ) -> Iterator[tuple[str, Progress] | StepOutcome | AlreadyRunning]:
        """See `Workers.make`."""
        # The store is part of the name: the same step in another store is other work.
        work = f"{keys[0]}-{value_sha256([self._store.uri, *keys])[:8]}"
        run = context.get("prefect", {}).get("flow_run_id", "")
        closes = context.get("closes", math.inf)

        def submit() -> RayJob:
            job = self._server.submit(
                work,
                lambda job: command(self._store, job.name, job.earlier_attempts, recipes, context),
                num_cpus=cpus,
                num_gpus=gpus,
                run=run,
            )
            with self._changing:
                self._jobs[work] = job, run
            if run:
                add_waiting_run(self._store.volatile, job.name, run)
            return job

        # The report grows while the job runs; `num_yielded` of its outcomes were yielded already.
        job, num_yielded = submit(), 0
        if job.reattached:
            yield AlreadyRunning(by=f"Ray Job {job.id}")
        try:
            while True:
                # Before the report: a job that has ended by now has written its last.
                why = self._server.end_reason(job)
                report = JobReport.read(self._store.volatile, job.name)
                if report.progress is not None and not report.is_ended:
                    yield report.step, report.progress
                # A job that another run submitted starts no step once the window of that run has
                # closed; while ours is open, the work is submitted again.
                held = any(end.held for end in report.ends) and time.time() < closes
                if not held:
                    yield from report.ends[num_yielded:]
                    num_yielded = len(report.ends)
                    if report.is_ended:
                        break
                # Ray gives up a job that finds no free node: no failure, so it is submitted again.
                if why is not None and (held or self._server.timed_out_unscheduled(job)):
                    job, num_yielded = submit(), 0
                elif why is not None:
                    raise RayWorkerLostError(f"the worker of {name!r} {why}")
                self._server.wait(len(self._jobs))
        finally:
            with self._changing:
                self._jobs.pop(work, None)
        yielded_names = {end.name for end in report.ends}
        for recipe in recipes:  # A joined job may not have been asked for all of them.
            if recipe.name not in yielded_names and self._store.find(recipe.key):
                yield StepOutcome(name=recipe.name, reused=True)

    def describe_devices(self, cpus: int, gpus: float) -> str:
        """See `Workers.describe_devices`: what it asks for, which the cluster may not have."""
        return f"{_devices_text(cpus, gpus, 0)} of the cluster"

    def cancel(self) -> None:
        """See `Workers.cancel`; a job that another living run waits for continues."""
        with self._changing:
            jobs = list(self._jobs.values())
        self._stop_unwanted_jobs(jobs, patience=_PATIENCE)

    def stop_run_jobs(self, run: str) -> list[str]:
        """Stops the jobs that a run submitted, as `cancel` does in its own process.

        Returns:
          The ids of the jobs that it stopped.

        Raises:
          RuntimeError: if there is no job server.
          RayWorkerLostError: if the job server does not answer any more.
        """
        return self._stop_unwanted_jobs(
            [(job, run) for job in self._server.run_jobs(run)], patience=None
        )

    def _stop_unwanted_jobs(
        self, jobs: Sequence[tuple[RayJob, str]], *, patience: float | None
    ) -> list[str]:
        """Stops jobs for which only the given runs wait, or dead ones; returns their ids.

        Args:
          jobs: jobs, each with the run that waits for it no more.
          patience: longest time to look for other runs [s]; a job not looked at by then is stopped.
        """
        # A job belongs to all who wait for it, whoever submitted it, and ends with the last:
        #
        #   run a   submits x ....... Ctrl-C: b waits for x, which continues
        #   run b         joins x ................. Ctrl-C: nobody waits for x, which is stopped
        wanted: set[str] = set()
        looking = threading.Thread(target=self._find_wanted, args=(jobs, wanted), daemon=True)
        looking.start()
        looking.join(patience)
        stopped = [job for job, _ in jobs if job.id not in wanted]
        self._server.stop(stopped)
        return [job.id for job in stopped]

    def _find_wanted(self, jobs: Sequence[tuple[RayJob, str]], wanted: set[str]) -> None:
        """Adds to `wanted` the ids of those jobs that another living run waits for."""

        def look(job: RayJob, run: str) -> None:
            if living - {run}:
                # First our own note, then a look at the others': so of two runs that end at the
                # same time at least one finds nobody.
                remove_waiting_run(files, job.name, run)
                if waiting_runs(files, job.name) & (living - {run}):
                    wanted.add(job.id)

        files = self._store.volatile
        # A person wants the jobs to end, so those of which the store cannot say are stopped.
        with contextlib.suppress(OSError), ThreadPoolExecutor(16) as pool:
            living = living_runs(files)
            list(pool.map(look, *zip(*jobs, strict=True)))

    def close(self) -> None:
        """See `Workers.close`."""
        self._server.close()


def workers_of(
    store: Store,
    *,
    ray_address: str | None,
    num_cpus: int | None,
    num_gpus: int | None,
    device: Literal["cpu", "gpu", "tpu"] | None,
    node_wait: float,
) -> Workers:
    """Returns Ray Jobs on the cluster at an address; without one, workers of this machine.

    Args:
      store: store of the steps' artifacts.
      ray_address: address of a Ray cluster's dashboard.
      num_cpus: number of cores of this machine's workers; None takes all.
      num_gpus: number of its GPUs likewise.
      device: kind of device of its nodes, as in `JobServer`.
      node_wait: longest wait for nodes [s], likewise.
    """
    if ray_address is None:
        return LocalWorkers(Cluster(num_cpus=num_cpus, num_gpus=num_gpus), store)
    server = JobServer(ray_address, code=checkout().files, device=device, node_wait=node_wait)
    return JobWorkers(server, store)


def _devices_text(cpus: int, gpus: float, tpus: int) -> str:
    """Returns "1 GPU", "all GPUs", "4 TPU chips" or "2 cores"."""
    if tpus:
        return f"{tpus} TPU chip{'s' * (tpus > 1)}"
    if gpus:
        return "all GPUs" if math.isinf(gpus) else f"{gpus:g} GPU{'s' * (gpus > 1)}"
    return f"{cpus} core{'s' * (cpus > 1)}"
