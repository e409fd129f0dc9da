"""Liveness by lease: the state of a run follows from its lease in the store.

    Running, and its lease lapsed              -> Crashed, and so are its rows under way
    Cancelling, and its lease lapsed           -> Cancelled, and its rows under way are Crashed
    Crashed by that rule, and the lease lives  -> Running: its machine was asleep, or cut off

A run's lease is its pin. The run's own process renews it several times a minute, on the store's
clock, and everybody with the store can see it. Marking a run as Crashed stops nothing: a run that
is still alive commits as before, and sets its own state when it ends. If a worker was the first to
report that a run ended, its rows under way are ended here.

When a run's rows or progress change, an event is sent, which alerts wait for.
"""

import datetime
import math
import time
import uuid
from collections.abc import Collection, Iterator, Sequence

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import ArtifactSort, TaskRunSort
from prefect.events import emit_event
from prefect.states import Running

from infra.prefect.api import read_all
from infra.prefect.journal import Ending, RunRecord
from infra.prefect.rows import settle
from infra.processes.identity import NOBODY
from infra.store.lease import LeaseView
from infra.store.pins import list_pins, run_of_pin
from infra.store.store import Store, canonical_uri

PROGRESS = "parcel.run.progress"
"""Event of a run that made progress; its resource is the run."""

_STILL = 10.0
"""Time for which a lapsed lease must be seen unchanged [s]: a holder that slept at the same time as
this process needs it to renew its lease."""
_NEVER_HELD = 600.0
"""Time after which a run without any lease counts as dead [s]; a run takes one as it begins."""
_LAPSED = "its lease lapsed"
_CANCELLED = "as somebody asked in the UI or by the API"
_ENDINGS: dict[StateType, Ending] = {
    StateType.COMPLETED: "completed",
    StateType.FAILED: "failed",
    StateType.CANCELLED: "cancelled",
    StateType.CRASHED: "crashed",
}
_LONG_AGO = datetime.datetime.min.replace(tzinfo=datetime.UTC)


class Watch:
    """Watches the runs of a store, on the server that Prefect's client is set to.

    Args:
      store: store in which the runs hold their leases.
      progress_every: interval between two looks for progress of one run [s].
    """

    def __init__(self, store: Store, progress_every: float = 20.0) -> None:
        self._store, self._progress_every = store, progress_every
        self._renewals: dict[str, tuple[bytes, float]] = {}
        self._unleased_since: dict[uuid.UUID, float] = {}
        self._progress: dict[uuid.UUID, tuple[float, datetime.datetime]] = {}
        self._settled: set[str] = set()

    def look(self) -> list[str]:
        """Corrects the state of every run that contradicts its lease; returns a line for each."""
        lines: list[str] = []
        pins_of = self._pins_by_run()
        dead = {run for run, pins in pins_of.items() if all(map(self._is_dead, pins))}
        live = {run for run, pins in pins_of.items() if any(pin.is_live() for pin in pins)}
        with get_client(sync_client=True) as client:
            running = list(runs_in(client, [StateType.RUNNING, StateType.CANCELLING]))
            for run in running:
                try:
                    if why := self._why_dead(run, pins_of.get(str(run.id), []), dead):
                        is_wanted = run.state is not None and run.state.is_cancelling()
                        why = _CANCELLED if is_wanted else why
                        _settle_flow_run(run, "cancelled" if is_wanted else "crashed", why)
                        end = "Cancelled" if is_wanted else "Crashed"
                        lines.append(f"run {run.name} ({run.id}): {end}, {why}")
                    else:
                        self._report_progress(client, run)
                except httpx.TransportError:
                    raise  # The server is away, for all of them.
                except Exception as error:  # One row hides no other.
                    what = f"{type(error).__name__}: {error}"
                    lines.append(f"run {run.name} ({run.id}): could not be looked at: {what}")
            # Runs that are over are forgotten, or a server of years would remember all of them.
            ids = {run.id for run in running}
            self._unleased_since = {
                run: since for run, since in self._unleased_since.items() if run in ids
            }
            self._progress = {run: at for run, at in self._progress.items() if run in ids}
            # Asleep or cut off, and back: only what the rule above has set is taken back.
            for run in runs_in(client, [StateType.CRASHED], live):
                if run.state is not None and (run.state.message or "").startswith(_LAPSED):
                    client.set_flow_run_state(
                        run.id, Running(message="its lease is renewed again"), force=True
                    )
                    lines.append(f"run {run.name} ({run.id}): Running, its lease is renewed again")
            self._settle_ended(client, dead)
        return lines

    def _pins_by_run(self) -> dict[str, list[LeaseView]]:
        """Returns the pins of every run, and notes since when each is unchanged."""
        now, before = time.monotonic(), self._renewals
        self._renewals = {}
        pins_by_run: dict[str, list[LeaseView]] = {}
        for pin in list_pins(self._store.volatile):
            pins_by_run.setdefault(run_of_pin(pin), []).append(pin)
            text, since = before.get(pin.key, (b"", now))
            self._renewals[pin.key] = (pin.text, since if text == pin.text else now)
        return pins_by_run

    def _why_dead(
        self, run: FlowRun, pins: Sequence[LeaseView], dead: Collection[str]
    ) -> str | None:
        """Returns why a run counts as dead; None if it does not."""
        assert run.state is not None
        if pins and str(run.id) not in dead:
            self._unleased_since.pop(run.id, None)
            return None
        # A retried run still has the lapsed lease of its last try, which says nothing about it.
        # One that is being cancelled need not have been renewed since.
        changed = _LONG_AGO if run.state.is_cancelling() else run.state.timestamp
        renewed = [pin for pin in pins if pin.renewed >= changed]
        if renewed:
            newest = max(renewed, key=lambda pin: pin.renewed)
            host = newest.lease.holder.host
            return f"{_LAPSED}: {host} was last heard of at {newest.renewed:%X} UTC"
        since = (
            self._unleased_since.setdefault(run.id, time.monotonic())
            if self._is_ours(run)
            else math.inf
        )
        is_unleased = time.monotonic() - since > _NEVER_HELD
        return f"{_LAPSED}: none was held for {_NEVER_HELD:.0f} s" if is_unleased else None

    def _settle_ended(self, client: SyncPrefectClient, dead: set[str]) -> None:
        """Ends the rows of runs whose end somebody else reported, as workers do for lost pods."""
        self._settled &= dead
        for run in runs_in(client, list(_ENDINGS), dead - self._settled):
            assert run.state is not None
            _settle_flow_run(run, _ENDINGS[run.state.type], run.state.message or "")
            self._settled.add(str(run.id))

    def _is_dead(self, pin: LeaseView) -> bool:
        if pin.is_live():
            return False
        still = time.monotonic() - self._renewals[pin.key][1]
        return pin.lease.holder.has_ended or still >= _STILL

    def _report_progress(self, client: SyncPrefectClient, run: FlowRun) -> None:
        looked, last = self._progress.get(run.id, (-math.inf, _LONG_AGO))
        if time.monotonic() - looked < self._progress_every:
            return
        newest = max([last, *_run_change_times(client, run)])
        self._progress[run.id] = (time.monotonic(), newest)
        if newest > last:
            _emit_progress(run)

    def _is_ours(self, run: FlowRun) -> bool:
        try:
            return canonical_uri(run.parameters["store"]) == self._store.uri
        except (KeyError, TypeError, ValueError):
            return False


def _run_change_times(client: SyncPrefectClient, run: FlowRun) -> Iterator[datetime.datetime]:
    """Yields the times of a run's last start and end of a row, and of its last shown progress."""
    asked = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
    for sort in (TaskRunSort.EXPECTED_START_TIME_DESC, TaskRunSort.END_TIME_DESC):
        for row in client.read_task_runs(flow_run_filter=asked, sort=sort, limit=1):
            yield from (at for at in (row.start_time, row.end_time) if at is not None)
    for artifact in client.read_artifacts(
        artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run.id])),
        sort=ArtifactSort.UPDATED_DESC,
        limit=1,
    ):
        if artifact.updated is not None:
            yield artifact.updated


def _emit_progress(run: FlowRun) -> None:
    deployment = {
        "prefect.resource.id": f"prefect.deployment.{run.deployment_id}",
        "prefect.resource.role": "deployment",
    }
    emit_event(
        PROGRESS,
        resource={
            "prefect.resource.id": f"prefect.flow-run.{run.id}",
            "prefect.resource.name": run.name,
        },
        related=[deployment] if run.deployment_id else [],
    )


def _settle_flow_run(run: FlowRun, ending: Ending, why: str) -> None:
    record = RunRecord(
        flow_run_id=str(run.id), process=NOBODY, nodes={}, ending=ending, message=why
    )
    settle(record)


def runs_in(
    client: SyncPrefectClient, states: list[StateType], ids: Collection[str] | None = None
) -> Iterator[FlowRun]:
    """Yields the runs in some states: of all runs, or of those with the given ids."""
    if ids is not None and not ids:
        return
    named = None if ids is None else FlowRunFilterId(any_=[uuid.UUID(run) for run in ids])
    state = FlowRunFilterState(type=FlowRunFilterStateType(any_=states))
    of_runs = FlowRunFilter(id=named, state=state)
    yield from read_all(client.read_flow_runs, flow_run_filter=of_runs)
