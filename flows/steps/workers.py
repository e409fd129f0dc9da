"""Where steps with JAX run: a Ray cluster of this machine, or Ray Jobs on one already there."""

import dataclasses
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from flows.steps import worker
from flows.steps.job import Report, command
from flows.steps.worker import Made
from infra.progress import Progress
from infra.ray.cluster import Cluster
from infra.ray.jobs import Job, JobServer
from infra.ray.lost import WorkerLost
from infra.store.digest import value_sha256
from infra.store.manifest import Recipe
from infra.store.store import Store

_JOBS_AT_ONCE = 500
"""Jobs submitted to a cluster and not ended: what it has no room for yet waits there, so that an
autoscaler sees it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Joined:
    """The work was under way already, begun by a run that is gone, or by another one.

    Attributes:
      job: Ray's submission id.
    """

    job: str


class Workers(Protocol):
    """Makes steps, each job of them in a process of its own."""

    @property
    def at_once(self) -> int:
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
    ) -> Iterator[tuple[str, Progress] | Made | Joined]:
        """Makes the missing steps of a job; yields their progress and their ends, as `worker.make`.

        Args:
          name: of what is made, for people.
          keys: of all steps of the job; `recipes` are those that are missing.
          recipes: what to make.
          context: run ids of the orchestrator, for the manifests.
          cpus: cores.
          gpus: GPUs, where there are any.

        Raises:
          WorkerLost: if the process died; the next call need not wait for what it held.
        """
        ...

    def cancel(self) -> None:
        """Stops what would outlive this process, which is about to end."""
        ...

    def leave(self) -> None:
        """Ends what dies with this process anyway, and wakes those who wait in `make`."""
        ...


class LocalWorkers:
    """Tasks on a Ray cluster of this machine, which ends with the run."""

    def __init__(self, cluster: Cluster, store: Store) -> None:
        self._cluster, self._store = cluster, store
        self._lost: dict[str, list[str]] = {}
        self.at_once = cluster.num_cpus

    def make(
        self,
        name: str,
        keys: Sequence[str],
        recipes: Sequence[Recipe],
        context: Mapping[str, Any],
        *,
        cpus: int,
        gpus: float,
    ) -> Iterator[tuple[str, Progress] | Made]:
        """See `Workers.make`."""
        token, lost = uuid.uuid4().hex, self._lost.setdefault(name, [])
        try:
            yield from self._cluster.stream(
                worker.make_apart,
                self._store.uri,
                recipes,
                context,
                token,
                tuple(lost),
                num_cpus=cpus,
                num_gpus=gpus,
                name=name,
            )
        except WorkerLost:
            lost.append(token)
            raise

    def cancel(self) -> None:
        """See `Workers.cancel`: nothing would."""

    def leave(self) -> None:
        """See `Workers.leave`."""
        self._cluster.stop()


class JobWorkers:
    """Ray Jobs, which go on when this process is gone; whoever needs the same work finds them."""

    def __init__(self, server: JobServer, store: Store) -> None:
        self._server, self._store = server, store
        self._jobs: dict[str, Job] = {}
        self._changing = threading.Lock()
        self.at_once = _JOBS_AT_ONCE

    def make(
        self,
        name: str,
        keys: Sequence[str],
        recipes: Sequence[Recipe],
        context: Mapping[str, Any],
        *,
        cpus: int,
        gpus: float,
    ) -> Iterator[tuple[str, Progress] | Made | Joined]:
        """See `Workers.make`."""
        # The same step of another store is other work.
        work = f"{keys[0]}-{value_sha256([self._store.uri, *keys])[:8]}"

        def submit() -> Job:
            job = self._server.submit(
                work,
                lambda job: command(self._store, job.name, job.earlier, recipes, context),
                num_cpus=cpus,
                num_gpus=gpus,
                run=context.get("prefect", {}).get("flow_run_id"),
            )
            with self._changing:
                self._jobs[work] = job
            return job

        job, told = submit(), 0
        if job.found:
            yield Joined(job=job.id)
        try:
            while True:
                why = self._server.why_ended(job)  # First: its last report is then there, too.
                report = Report.read(self._store.fleeting, job.name)
                if report.progress is not None and not report.is_ended:
                    yield report.step, report.progress
                yield from report.ends[told:]
                told = len(report.ends)
                if report.is_ended:
                    break
                if why is not None and self._server.was_given_up(job):
                    job, told = submit(), 0
                elif why is not None:
                    raise WorkerLost(f"the worker of {name!r} {why}")
                self._server.wait(len(self._jobs))
        finally:
            with self._changing:
                self._jobs.pop(work, None)
        made = {end.name for end in report.ends}
        for recipe in recipes:  # A job found under way need not have been asked for all of them.
            if recipe.name not in made and self._store.find(recipe.key):
                yield Made(name=recipe.name, reused=True)

    def cancel(self) -> None:
        """See `Workers.cancel`."""
        with self._changing:
            jobs = list(self._jobs.values())
        self._server.stop(jobs)

    def leave(self) -> None:
        """See `Workers.leave`."""
        self._server.leave()
