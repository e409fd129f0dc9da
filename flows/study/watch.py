"""`parcel watch`: a process beside a Prefect server that reports to it which runs have died."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, StateType

from flows.lineage.runs import close_dead_records
from flows.steps.workers import JobWorkers
from flows.study.form_values import study_of_form
from infra.errors import ConfigError
from infra.prefect.api import named_server
from infra.prefect.published import published
from infra.prefect.rows import settle_ended
from infra.prefect.watch import Watch, runs_in
from infra.ray.errors import RayWorkerLostError
from infra.ray.jobs import JobServer
from infra.store.store import Store

_LOOK_EVERY = 5.0
"""Interval between two looks at the runs [s]."""


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


def settle_runs_forever(store: Store, write_line: Callable[[str], None] = lambda _: None) -> None:
    """Settles every run that was killed, on this machine or elsewhere; never returns."""
    watching = Watch(store)
    while True:
        # Asked before the look, which settles such runs: those that were being cancelled, and now
        # are, may have left jobs behind.
        cancelling = published(_runs_in_state, StateType.CANCELLING) or {}
        published(settle_ended, store.state)  # First: a journal says more than an expired lease.
        if lines := published(watching.look):
            for line in lines:
                write_line(line)
            close_dead_records(store)
        if cancelling:
            cancelled = published(_runs_in_state, StateType.CANCELLED, list(cancelling)) or {}
            for run in cancelled.values():
                for line in _stop_ray_jobs(run, store):
                    write_line(line)
        time.sleep(_LOOK_EVERY)


def _runs_in_state(state: StateType, ids: list[str] | None = None) -> dict[str, FlowRun]:
    with get_client(sync_client=True) as client:
        return {str(run.id): run for run in runs_in(client, [state], ids)}


def _stop_ray_jobs(run: FlowRun, store: Store) -> Iterator[str]:
    """Stops the Ray Jobs of a cancelled run, whose own process may have died before doing so."""
    # Whoever watches may not be able to read the study of the run, or to reach its cluster: then a
    # line says so, and the watching goes on.
    try:
        address = _ray_address(run.parameters, store)
    except (ConfigError, OSError) as error:
        yield f"run {run.name} ({run.id}): could not check whether it left Ray Jobs: {error}"
        return
    if not address:
        return
    workers = JobWorkers(JobServer(address, code={}, node_wait=0.0), store)
    try:
        stopped = workers.stop_run_jobs(str(run.id))
    except (RuntimeError, RayWorkerLostError) as error:
        yield f"run {run.name} ({run.id}): could not ask for its Ray Jobs: {error}"
        return
    finally:
        workers.leave()
    # Silent in the usual case, where the run has stopped its jobs itself.
    if stopped:
        yield f"run {run.name} ({run.id}): stopped its Ray Jobs {', '.join(stopped)}"


def _ray_address(parameters: Mapping[str, Any], store: Store) -> str | None:
    """Returns the address of a run's Ray cluster; None if it has none.

    The parameters of a run hold its whole config if a command began it, else a form's fields.
    """
    config = parameters.get("config")
    if isinstance(config, Mapping):
        return config.get("compute", {}).get("ray_address")
    form_fields = parameters.get("overrides") or (), parameters.get("data_root", "")
    study = study_of_form(
        parameters.get("study", "demo"),
        store,
        *form_fields,
        parameters.get("given"),
        parameters.get("steps") or (),
    )
    return study.compute.ray_address
