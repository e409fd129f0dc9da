"""`parcel serve --watch`: a process that reports to a Prefect server which runs have died."""

import time
from collections.abc import Callable, Iterator

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, StateType

from flows.lookup.runs import close_dead_records, record_of
from flows.steps.workers import JobWorkers
from infra.errors import one_line
from infra.prefect.api import named_server
from infra.prefect.best_effort import best_effort
from infra.prefect.rows import settle_ended
from infra.prefect.watch import Watch, runs_in
from infra.ray.jobs import JobServer
from infra.store.store import Store

_RECORDS_EVERY = 30.0
"""Longest time between two looks at the records of all runs [s]."""


def watch_runs(store: Store, write_line: Callable[[str], None]) -> None:
    """Watches the runs of a store, on the server that `PREFECT_API_URL` names, until interrupted.

    Args:
      store: store in which the runs hold their leases.
      write_line: called with a line whenever the state of a run is set.

    Raises:
      ConfigError: if no server answers.
    """
    with named_server() as client:
        write_line(f"watching runs of {store.uri} at {client.api_url}; end with Ctrl-C")
    settle_runs_forever(store, write_line)


def settle_runs_forever(
    store: Store, write_line: Callable[[str], None], look_every: float = 5.0
) -> None:
    """Settles every run that was killed, on this machine or elsewhere; never returns.

    Args:
      store: store in which the runs hold their leases.
      write_line: called with a line whenever the state of a run is set, or a look fails.
      look_every: interval between two looks at the runs [s].
    """
    looks, written = _Looks(store), frozenset[str]()
    while True:
        # What fails at each look is written once, until a look is without it.
        lines = [one_line(line) for line in looks.look()]
        for line in lines:
            if line not in written:
                write_line(line)
        written = frozenset(lines)
        time.sleep(look_every)


class _Looks:
    """Looks at the runs of a store, each of which says what it did, and what it could not do."""

    def __init__(self, store: Store) -> None:
        self._store, self._watching, self._looked = store, Watch(store), -_RECORDS_EVERY

    def look(self) -> list[str]:
        """Settles the runs that were killed, and returns lines; no run's row ends the watching."""
        lines: list[str] = []
        try:
            for line in self._look_for_dead_runs():
                lines.append(line)
        except Exception as error:  # Rows come from strangers: the next look is made all the same.
            lines.append(f"the runs could not be looked at: {type(error).__name__}: {error}")
        return lines

    def _look_for_dead_runs(self) -> Iterator[str]:
        # Asked before the look, which settles such runs: those that were being cancelled, and now
        # are, may have left jobs behind.
        cancelling = best_effort(_runs_in_state, StateType.CANCELLING) or {}
        # First: a journal says more than an expired lease.
        yield from best_effort(settle_ended, self._store) or ()
        lines = best_effort(self._watching.look) or ()
        yield from lines
        # Of a run that was ended by a signal there is no line: it has told Prefect itself.
        if lines or time.monotonic() - self._looked > _RECORDS_EVERY:
            close_dead_records(self._store)
            self._looked = time.monotonic()
        if cancelling:
            cancelled = best_effort(_runs_in_state, StateType.CANCELLED, list(cancelling)) or {}
            for run in cancelled.values():
                yield from _stop_ray_jobs(run, self._store)


def _runs_in_state(state: StateType, ids: list[str] | None = None) -> dict[str, FlowRun]:
    with get_client(sync_client=True) as client:
        return {str(run.id): run for run in runs_in(client, [state], ids)}


def _stop_ray_jobs(run: FlowRun, store: Store) -> Iterator[str]:
    """Stops the Ray Jobs of a cancelled run, whose own process may have died before doing so."""
    # Whoever watches may not be able to reach the run's cluster, or to read its record: then a line
    # says so, and the watching goes on.
    try:
        stopped = _stopped_jobs(str(run.id), store)
    except Exception as error:  # Ray has errors of many kinds for a cluster that is not there.
        yield f"run {run.name} ({run.id}): could not check whether it left Ray Jobs: {error}"
        return
    # Silent in the usual case, where the run has stopped its jobs itself.
    if stopped:
        yield f"run {run.name} ({run.id}): stopped its Ray Jobs {', '.join(stopped)}"


def _stopped_jobs(run_id: str, store: Store) -> list[str]:
    """Stops the jobs that a run left behind; returns their ids."""
    # Where its cluster is, the run itself has written into its store. Its row on the server says so
    # too, but may be written by whoever has the server's password.
    record = record_of(store, run_id)
    compute = record["config"].get("compute", {}) if record is not None else {}
    address = compute.get("ray_address")
    if not address:
        return []
    workers = JobWorkers(JobServer(address, code={}, node_wait=0.0), store)
    try:
        return workers.stop_run_jobs(run_id)
    finally:
        workers.close()
