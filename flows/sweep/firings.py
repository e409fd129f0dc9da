"""Firings of a schedule: which of those that are due begins, and what is told of the others.

A server that was down, a machine that slept or a run that takes longer than its schedule's interval
leaves several firings of one schedule due at once. They would make the same cells, wait for each
other's leases, and each add a seed of its own. So one of them works:

    fires at        09:00        10:00        11:00        12:00
    laptop                 ▒▒▒▒▒▒ asleep ▒▒▒▒▒▒▒▒▒▒▒▒ open
                    runs                               12:00 begins; 10:00 and 11:00 are skipped
    a long run      ████████████████
                    runs         skipped      begins
"""

import datetime
import zoneinfo
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import psutil
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import DeploymentSchedule, FlowRun, State
from prefect.client.schemas.sorting import FlowRunSort
from prefect.context import FlowRunContext
from prefect.states import Completed

from flows.report.durations import age_text
from infra.errors import printable
from infra.prefect.best_effort import best_effort
from infra.prefect.times import firings
from infra.store.pins import living_runs
from infra.store.store import Store

_SKIPPED = "Skipped"
"""Name of the state of a firing that began nothing, since another one works in its place."""
_MISSED = "missed"
"""Beginning of what such a firing says that another one replaces, which came later."""
_LOOK_BACK = datetime.timedelta(days=2)
"""Time for which it is told that firings were late, missed or skipped."""
_ON_TIME = datetime.timedelta(seconds=60)
"""Time within which a firing begins on a busy machine, after its plan and its process."""
_MOST = 200
"""Most firings that are looked at, the newest: as many as Prefect gives at once."""
_MAX_REASONS = 5
"""Most reasons for skipped firings that are told, the newest."""
_HALF_A_DAY = datetime.timedelta(hours=12)
"""Time whose firings are computed at once: Prefect computes at most 1,000."""


def skipped(store: Store) -> State[Any] | None:
    """Returns the state in which this process's run ends at once; None if it is to begin.

    Args:
      store: the store of the run.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    if run is None or run.created_by is None or run.created_by.type != "SCHEDULE":
        return None
    # Without the server's answer it begins: leases save double work.
    others = best_effort(_due_firings, run) or []
    began = datetime.datetime.fromtimestamp(psutil.Process().create_time(), datetime.UTC)
    why = why_skipped(run, others, living_runs(store.volatile), began)
    return Completed(name=_SKIPPED, message=why) if why else None


def why_skipped(
    run: FlowRun, others: Sequence[FlowRun], living: Collection[str], began: datetime.datetime
) -> str | None:
    """Returns why a firing begins nothing, in a clause; None if it begins.

    Args:
      run: the firing.
      others: the other firings of its schedule that are due.
      living: ids of the runs that work in the store.
      began: time at which the firing's process began.
    """
    for other in others:
        at = _time_text(_due_time_of_run(other), "UTC")
        # Not what is due now, but what was when the process began: where its imports take longer
        # than the schedule's interval, each firing would give way to the next. And a firing that
        # somebody retries by hand is wanted, however old it is.
        if run.run_count <= 1 and _due_time_of_run(run) < _due_time_of_run(other) <= began:
            return f"{_MISSED}: that of {at} was due, too, and makes what is missing"
        if str(other.id) in living:
            waits = other.state is not None and other.state.is_paused()
            does = "waits for approval" if waits else "still runs"
            return f"the firing of {at} {does} (run {other.name} {str(other.id)[-12:]})"
    return None


def _due_firings(run: FlowRun) -> list[FlowRun]:
    """Returns the other firings of a run's schedule that are due, the newest first."""
    assert run.created_by is not None
    with get_client(sync_client=True) as client:
        found = _read_firings(client, run.created_by.id, datetime.datetime.now(datetime.UTC))
    return [each for each in found if each.id != run.id]


def _read_firings(
    client: SyncPrefectClient, schedule: Any, now: datetime.datetime
) -> list[FlowRun]:
    asked = {
        "created_by": {"id_": [schedule]},
        "expected_start_time": {"before_": now, "after_": now - _LOOK_BACK},
    }
    return client.read_flow_runs(
        flow_run_filter=FlowRunFilter.model_validate(asked),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=_MOST,
    )


def past_lines(
    client: SyncPrefectClient,
    schedule: DeploymentSchedule,
    *,
    can_start: bool,
    now: datetime.datetime | None = None,
) -> Iterator[str]:
    """Yields lines on the firings of two days that are or were late, were missed or were skipped.

    Args:
      client: client of the server.
      schedule: the schedule, which is active.
      can_start: whether something starts the runs of its deployment.
      now: end of the two days; None takes the current time.
    """
    now = now or datetime.datetime.now(datetime.UTC)
    zone = getattr(schedule.schedule, "timezone", None) or "UTC"
    runs = _read_firings(client, schedule.id, now)
    of_state = [(run, run.state) for run in runs if run.state is not None]
    # What is late begins, or is skipped for the newest: `skipped`.
    late = [
        run
        for run, state in of_state
        if state.is_scheduled() and now - _due_time_of_run(run) > _ON_TIME
    ]
    if late:
        at = _time_text(_due_time_of_run(late[0]), zone)
        by = age_text((now - _due_time_of_run(late[0])).total_seconds())
        others = f", and {len(late) - 1} before it, which are skipped for it" if late[1:] else ""
        then = "it begins when a run may" if can_start else "nothing starts it: `parcel serve` does"
        yield f"late: the firing of {at}, by {by}{others}; {then}"
    by_message: dict[str, list[datetime.datetime]] = {}
    for run, state in of_state:
        if state.name == _SKIPPED:
            by_message.setdefault(state.message or "", []).append(_due_time_of_run(run))
    missed = _missed_firing_times(schedule, runs, now)
    for message in [each for each in by_message if each.startswith(_MISSED)]:
        missed += by_message.pop(message)
    if missed:
        yield (
            f"missed: {_firings_text(missed, zone)}, when nothing that starts runs was there or "
            f"free; the next one makes what is missing"
        )
    # Each reason with the firings that it kept, the newest first.
    for message, times in [*by_message.items()][:_MAX_REASONS]:
        yield f"skipped: {_firings_text(times, zone)}: {printable(message)}"
    if rest := [each for times in [*by_message.values()][_MAX_REASONS:] for each in times]:
        yield f"skipped: {_firings_text(rest, zone)}: for other reasons of this kind"
    for run in (run for run, state in of_state if state.name != _SKIPPED):
        began = run.start_time.timestamp() if run.start_time is not None else 0.0
        if (delay := began - _due_time_of_run(run).timestamp()) > _ON_TIME.total_seconds():
            due = _time_text(_due_time_of_run(run), zone)
            yield f"the firing of {due} began {age_text(delay)} late"
            return


def _missed_firing_times(
    schedule: DeploymentSchedule, runs: Sequence[FlowRun], now: datetime.datetime
) -> list[datetime.datetime]:
    """Returns the times at which a schedule should have fired and no run is known."""
    # Prefect deletes what it has planned where a deployment is paused, as by the end of its server;
    # so what was missed is found by the times. Those since the schedule's last change count.
    begin = now - _LOOK_BACK
    if schedule.updated is not None:
        begin = max(begin, schedule.updated + _ON_TIME)
    if len(runs) == _MOST:
        begin = max(begin, _due_time_of_run(runs[-1]))
    known = {_due_time_of_run(run).replace(microsecond=0) for run in runs}
    times, end = schedule.schedule.model_dump(), now - _ON_TIME
    missed: list[datetime.datetime] = []
    while begin < end:
        until = min(begin + _HALF_A_DAY, end)
        dates = firings(times, begin, until, most=1000)
        missed += [each for each in dates if each.replace(microsecond=0) not in known]
        begin = until + datetime.timedelta(seconds=1)
    return missed


def _due_time_of_run(run: FlowRun) -> datetime.datetime:
    assert run.expected_start_time is not None  # By it they are found.
    return run.expected_start_time


def _firings_text(times: Sequence[datetime.datetime], zone: str) -> str:
    """Returns "the firing of TIME", or "3 firings since TIME, the last of TIME"."""
    first, last = (_time_text(time, zone) for time in (min(times), max(times)))
    if len(times) == 1:
        return f"the firing of {last}"
    return f"{len(times):,} firings since {first}, the last of {last}"


def _time_text(time: datetime.datetime, zone: str) -> str:
    return f"{time.astimezone(zoneinfo.ZoneInfo(zone)):%Y-%m-%d %H:%M} {zone}"
