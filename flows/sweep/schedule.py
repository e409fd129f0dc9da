"""Schedules of a server's studies and sweeps: set, listed, changed and stopped."""

import contextlib
import dataclasses
import datetime
import zoneinfo
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import pydantic
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterTags,
    FlowFilter,
    FlowFilterName,
)
from prefect.client.schemas.objects import DeploymentSchedule, DeploymentStatus
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import SCHEDULE_TYPES, CronSchedule
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

from flows.config.server_limits import Limits, check_served_store, limited, limits_of
from flows.graph.explain import explain_study
from flows.pages.overview import Firing, ServerFacts
from flows.report.text_lists import abbreviate_list
from flows.run.limits import ALWAYS, SweepLimits
from flows.run.run_log import opening_line
from flows.sweep.firings import past_lines
from flows.sweep.form import describe_deployment, describe_next_sweep
from flows.sweep.form_values import (
    check_form_types,
    check_values,
    store_here,
    study_of_form,
    sweep_of_form,
)
from flows.sweep.sweep import Sweep, SweepRun
from infra.errors import ConfigError, printable
from infra.prefect.api import named_server, read_all
from infra.prefect.deployed import describe, set_schedule
from infra.prefect.server import ui_of
from infra.prefect.times import cron_problem, firings
from infra.store.store import Store
from infra.time_zones import is_time_zone

_SWEEP_SLUG = "sweep-"
"""Beginning of the slug of a sweep's schedule, before the study's name."""
_ID_LENGTH = 8
"""Digits of a schedule's id that tell two of one name apart: the last, since ids begin with the
time."""
_AROUND_CHANGE = datetime.timedelta(hours=3)
"""Time before and after a change of the clocks in which a firing may be moved."""
_MAX_TIMES = 3
"""Most times of a day that are named in one line; the others are only counted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduledStudy:
    """A schedule on a server, with the deployment that it fires.

    Attributes:
      flow: name of the flow that it starts, study or sweep.
      deployment: the deployment.
      schedule: the schedule.
    """

    flow: str
    deployment: DeploymentResponse
    schedule: DeploymentSchedule

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the flow at each firing."""
        return {**self.deployment.parameters, **self.schedule.parameters}

    @property
    def study(self) -> str:
        """Name of the study that it runs."""
        # The slug has the study's name; of a schedule set in the UI only the form's field is known.
        slug, field = self.schedule.slug or "", str(self.parameters.get("study", "demo"))
        if slug.startswith(_SWEEP_SLUG):
            name = slug.removeprefix(_SWEEP_SLUG)
        else:
            is_file = PurePath(field).suffix in (".yaml", ".yml")
            name = PurePath(field).stem if is_file else field
        return printable(name)  # Whoever has the server's password may have written it.

    @property
    def store(self) -> str:
        """Store of its runs [URI]."""
        return self.parameters.get("store", ".parcel")

    @property
    def limits(self) -> Limits:
        """Limits of its runs."""
        return limits_of(self.deployment.model_dump(mode="json"))


def schedule_sweep(sweep_run: SweepRun, when: SweepLimits, cron: str) -> Iterator[str]:
    """Sets the schedule on which a sweep fires, and yields lines on what changed.

    Args:
      sweep_run: the sweep.
      when: limits on when its cells may begin.
      cron: times at which it fires, in the time zone of `when`.

    Raises:
      ConfigError: if no server answers, if it has no deployment that runs sweeps, or if there is
        nothing that a firing would run.
    """
    times = cron_schedule(cron, when.timezone)
    name, study = sweep_run.config.name, sweep_run.source
    # The run starts in another folder: a relative path would not be found there.
    if PurePath(study).suffix:
        study = str(Path(study).resolve())
    # What the schedule will call the flow `sweep` with, each time it fires.
    parameters: dict[str, Any] = {
        "study": study,
        "add": _changed_settings(sweep_run.sweep),
        "when": _changed_settings(when),
        "overrides": list(sweep_run.overrides),
    }
    with _schedule_server_client() as client:
        deployment = _find_deployment(client, name)
        if deployment.name == name:
            parameters["study"] = name  # The deployed values: runs may not see local files.
        # What is missing is looked up in the store of the runs, where this machine can open it.
        uri = deployment.parameters["store"]
        run_store = sweep_run.store if uri == sweep_run.store.uri else store_here(uri)
        if run_store is not None:
            sweep_run = dataclasses.replace(sweep_run, store=run_store)
            _check_work(sweep_run)
        set_schedule(client, deployment, times, f"{_SWEEP_SLUG}{name}", parameters)
        describe(deployment.id, describe_deployment(sweep_run))
        yield f"deployment sweep/{deployment.name}: fires at {cron!r} {when.timezone}"
        yield from describe_next_sweep(sweep_run)
        if run_store is not None and deployment.work_pool_name is None:
            yield from _describe_unreadable(deployment, parameters, sweep_run)
        if run_store is None:
            yield f"counted in {sweep_run.store.uri}; its runs use {uri}, not on this machine"
        yield from describe_days(times)
        yield from describe_clock_changes(times, when)
        yield f"UI: {ui_of(str(client.api_url))}/deployments/deployment/{deployment.id}"


def _describe_unreadable(
    deployment: DeploymentResponse, parameters: Mapping[str, Any], sweep_run: SweepRun
) -> Iterator[str]:
    """Yields a line if the server lets no firing read what the sweep names."""
    try:
        with limited(limits_of(deployment.model_dump(mode="json"))):
            sweep_of_form(
                parameters["study"],
                sweep_run.store,
                sweep_run.overrides,
                sweep_run.sweep,
                deployment.parameters.get("given"),
            )
    except ConfigError as error:
        yield f"as the server stands now, each firing will fail: {error}"


def list_schedules() -> Iterator[str]:
    """Yields lines on every schedule: its study, when it fires next, and what it would run then.

    Raises:
      ConfigError: if no server answers.
    """
    with _schedule_server_client() as client:
        schedules = _read_schedules(client)
        past = _read_past(client, schedules)
    if not schedules:
        yield "no schedules: `parcel sweep --cron` and `parcel deploy --cron` set one"
    for name, scheduled in schedules.items():
        yield from _describe_schedule(name, scheduled, past[name])


def read_server_facts() -> ServerFacts | None:
    """Returns the schedules of the server, and whether it starts runs; None if none answers."""
    try:
        with _schedule_server_client() as client:
            schedules = _read_schedules(client)
            past = _read_past(client, schedules)
            deployments = {d.name: d for d in _read_deployments(client, "study")}
    except ConfigError:
        return None
    general = deployments.get("study")
    return ServerFacts(
        firings=[_read_firing(name, each, past[name]) for name, each in schedules.items()],
        can_start=general is not None and _is_started(general),
    )


def _is_started(deployment: DeploymentResponse) -> bool:
    """Returns whether something starts the runs of a deployment."""
    # Ready is one whose runner, or worker, has asked for work within the last minute.
    return not deployment.paused and deployment.status == DeploymentStatus.READY


def start_from_form(flow: str, parameters: Mapping[str, Any]) -> str:
    """Starts a run of a form of `parcel serve`, and returns the run's id.

    Args:
      flow: the form: study or sweep.
      parameters: the values that are not the form's own.

    Raises:
      ConfigError: if no server answers, it has no such form, or it refuses the values.
    """
    with _schedule_server_client("the run") as client:
        try:
            deployment = client.read_deployment_by_name(f"{flow}/{flow}")
        except ObjectNotFound:
            raise ConfigError("nothing here starts a run: start `parcel serve`.") from None
        run = client.create_flow_run_from_deployment(deployment.id, parameters=dict(parameters))
    return str(run.id)


def stop_schedule(name: str) -> Iterator[str]:
    """Switches a schedule off; yields lines on what changed.

    Args:
      name: name of the schedule, or of its study if no other schedule runs it.

    Raises:
      ConfigError: if no server answers, or it has no such schedule.
    """
    with _schedule_server_client() as client:
        name, scheduled = _find_schedule(client, name)
        # Switched off and not deleted: what it would run stays on record, for `change`. Prefect's
        # server empties the parameters of an update that does not repeat them.
        client.update_deployment_schedule(
            scheduled.deployment.id,
            scheduled.schedule.id,
            active=False,
            parameters=scheduled.schedule.parameters,
        )
    outcome = "stopped" if scheduled.schedule.active else "was stopped already"
    yield f"{name}: {outcome}; a run under way goes on"
    yield f"`parcel schedule change {name}` with any option starts it again"


def change_schedule(
    name: str,
    *,
    cron: str | None = None,
    timezone: str | None = None,
    add: Mapping[str, Any] | None = None,
    when: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """Changes a schedule, starts it if it was stopped, and yields lines on it.

    Args:
      name: name of the schedule, or of its study if no other schedule runs it.
      cron: times at which it fires; None leaves them.
      timezone: time zone of these times and of its window; None leaves it.
      add: fields of `Sweep` that change; the others stay.
      when: fields of `SweepLimits` that change; the others stay.

    Raises:
      ConfigError: if no server answers, it has no such schedule, or nothing changes; or if there is
        nothing that a firing would run.
    """
    if cron is None and timezone is None and not add and not when:
        raise ConfigError("change must come with an option, such as --cron or --add-seeds.")
    with _schedule_server_client() as client:
        name, scheduled = _find_schedule(client, name)
        times = _changed_times(name, scheduled.schedule.schedule, cron, timezone)
        parameters = dict(scheduled.schedule.parameters)
        if scheduled.flow == "sweep":
            if timezone is not None:
                when = {**(when or {}), "timezone": timezone}
            parameters |= _changed_parameters(scheduled, add or {}, when or {})
        elif add or when:
            raise ConfigError(
                f"options of a sweep must be for the schedule of one, got {name}, which runs a "
                f"study as it is; `parcel sweep --cron` schedules a sweep of it."
            )
        # Checked as it will be, before anything is changed on the server.
        schedule = scheduled.schedule.model_copy(
            update={"schedule": times, "parameters": parameters, "active": True}
        )
        changed = dataclasses.replace(scheduled, schedule=schedule)
        with limited(changed.limits):
            check_served_store(changed.store)
            store = store_here(changed.store)
            sweep_run = _sweep_run(changed, store) if changed.flow == "sweep" and store else None
            if sweep_run is not None:
                _check_work(sweep_run)
        client.update_deployment_schedule(
            changed.deployment.id,
            schedule.id,
            active=True,
            schedule=times,
            parameters=parameters,
        )
        if sweep_run is not None:
            with limited(changed.limits):
                text = describe_deployment(sweep_run)
            describe(changed.deployment.id, text)
    yield from _describe_schedule(name, changed)


def cron_schedule(cron: str, timezone: str) -> CronSchedule:
    """Returns a cron in a time zone as Prefect's schedule.

    Raises:
      ConfigError: naming the option, its value, what is accepted and what is wrong.
    """
    if why := cron_problem(cron):
        raise ConfigError(
            f"--cron must be five fields: minute, hour, day of month, month, day of week, got "
            f"{cron!r}: {why}."
        )
    if not is_time_zone(timezone):
        raise ConfigError(
            f"--timezone must be a time zone such as Europe/Berlin, got {timezone!r}."
        )
    return CronSchedule(cron=cron, timezone=timezone)


def describe_days(times: CronSchedule) -> Iterator[str]:
    """Yields a line on a cron that states both a day of the month and one of the week."""
    _, _, day, _, weekday = times.cron.split() if " " in times.cron else "*****"
    if times.day_or and not (day.startswith("*") or weekday.startswith("*")):
        yield (
            f"it fires on day of month {day} and, besides, on each day of week {weekday}: of two "
            f"such fields cron asks for either; * in one leaves the other"
        )


def describe_clock_changes(
    times: CronSchedule, when: SweepLimits = ALWAYS, now: datetime.datetime | None = None
) -> Iterator[str]:
    """Yields a line for each change of the clocks, in a year, that moves or repeats a firing.

    Args:
      times: the schedule.
      when: limits on when the cells of its firings may begin.
      now: begin of the year; None takes the current time.
    """
    # In spring a time of the day is left out. Prefect then fires at another one, an hour off, which
    # may lie outside the window of the sweep:
    #
    #   cron 30 2 * * *, Europe/Berlin    27 March 02:30   28 March 01:30   29 March 02:30
    #
    # Prefect itself is asked, for the hours around each change, since its rule is its own and
    # differs between versions of Python. The same cron in UTC, where no clock changes, says at
    # which times of the day it should fire.
    zone = zoneinfo.ZoneInfo(times.timezone or "UTC")
    without_changes = times.model_copy(update={"timezone": "UTC"})
    for change in _clock_changes(zone, now or datetime.datetime.now(datetime.UTC)):
        start, end = change - _AROUND_CHANGE, change + _AROUND_CHANGE
        # Asked again at the change itself, as a server does that plans ahead all the time.
        firings = {*_firing_times(times, start, end), *_firing_times(times, change, end)}
        local_times = Counter(_naive_local_time(firing, zone) for firing in firings)
        wanted = {
            _naive_local_time(firing, datetime.UTC)
            for firing in _firing_times(
                without_changes,
                _as_utc(_naive_local_time(start, zone)),
                _as_utc(_naive_local_time(end, zone)),
            )
        }
        day = f"on {_naive_local_time(change, zone).date()} the clocks of {zone.key} change"
        if missing := sorted(wanted - local_times.keys()):
            moved = sorted(f for f in firings if _naive_local_time(f, zone) not in wanted)
            instead = f"it fires at {_times_text(moved, zone)} instead" if moved else "no firing"
            # A firing outside its window begins nothing.
            outside = bool(moved) and all(when.closes(firing) == firing for firing in moved)
            but = f", outside {when.start}-{when.end}, and begins nothing" if outside else ""
            yield f"{day}: there is no {_times_text(missing)}, {instead}{but}"
        if repeated := sorted(time for time, count in local_times.items() if count > 1):
            yield f"{day}: {_times_text(repeated)} comes twice, and so does the firing"


def _clock_changes(zone: zoneinfo.ZoneInfo, now: datetime.datetime) -> Iterator[datetime.datetime]:
    """Yields the full hours, in UTC, by which a zone's clocks have changed, of the next year."""
    hour = now.astimezone(datetime.UTC).replace(minute=0, second=0, microsecond=0)
    for _ in range(366 * 24):
        later = hour + datetime.timedelta(hours=1)
        if hour.astimezone(zone).utcoffset() != later.astimezone(zone).utcoffset():
            yield later
        hour = later


def _firing_times(
    schedule: SCHEDULE_TYPES,
    start: datetime.datetime,
    end: datetime.datetime | None = None,
    *,
    most: int | None = None,
) -> list[datetime.datetime]:
    # The client's classes only carry the values; those of the server, of the same names, compute.
    return firings(schedule.model_dump(), start, end, most=most)


def _next_firing(times: SCHEDULE_TYPES) -> datetime.datetime | None:
    # Of two candidates the first may be past: a firing that a change of the clocks has moved.
    dates = _firing_times(times, datetime.datetime.now(datetime.UTC), most=2)
    return dates[0] if dates else None


def _why_never(times: SCHEDULE_TYPES) -> str:
    """Returns why a schedule without a next firing has none."""
    why = cron_problem(times.cron) if isinstance(times, CronSchedule) else None
    return why or "its times have no date left"


def _naive_local_time(time: datetime.datetime, zone: datetime.tzinfo) -> datetime.datetime:
    return time.astimezone(zone).replace(tzinfo=None)


def _as_utc(time: datetime.datetime) -> datetime.datetime:
    return time.replace(tzinfo=datetime.UTC)


def _times_text(times: Sequence[datetime.datetime], zone: zoneinfo.ZoneInfo | None = None) -> str:
    local = [_naive_local_time(time, zone) if zone else time for time in times]
    return abbreviate_list([f"{time:%H:%M}" for time in local], _MAX_TIMES)


@contextlib.contextmanager
def _schedule_server_client(what: str = "the schedule") -> Iterator[SyncPrefectClient]:
    """Yields a client of the server; a request that it refuses is a `ConfigError`."""
    try:
        with named_server() as client:
            yield client
    except PrefectHTTPStatusError as error:
        detail = error.response.json().get("detail", error)
        raise ConfigError(f"the server refused {what}: {detail}") from None


def _find_deployment(client: SyncPrefectClient, name: str) -> DeploymentResponse:
    # That of `parcel deploy`, which carries the study; else the general one of `parcel serve`.
    for deployment_name in (name, "sweep"):
        with contextlib.suppress(ObjectNotFound):
            return client.read_deployment_by_name(f"sweep/{deployment_name}")
    raise ConfigError(
        f"--cron must have a deployment that runs it: start `parcel serve`, or register {name} "
        f"with a work pool, `parcel deploy`."
    )


def _read_schedules(client: SyncPrefectClient) -> dict[str, ScheduledStudy]:
    """Returns name -> schedule, for all schedules of our deployments."""
    schedules = [
        ScheduledStudy(flow=flow, deployment=deployment, schedule=schedule)
        for flow in ("study", "sweep")
        for deployment in _read_deployments(client, flow)
        for schedule in deployment.schedules
    ]
    # Two schedules may run one study in the same way, one of them set in the UI perhaps.
    counts = Counter(f"{each.flow}-{each.study}" for each in schedules)
    names = {}
    for each in schedules:
        name = f"{each.flow}-{each.study}"
        names[f"{name}-{str(each.schedule.id)[-_ID_LENGTH:]}" if counts[name] > 1 else name] = each
    return dict(sorted(names.items()))


def _read_past(
    client: SyncPrefectClient, schedules: Mapping[str, ScheduledStudy]
) -> dict[str, Sequence[str]]:
    """Returns, for each schedule by name, lines on firings that were late, missed or skipped."""
    return {
        name: tuple(past_lines(client, each.schedule, can_start=_is_started(each.deployment)))
        if each.schedule.active
        else ()
        for name, each in schedules.items()
    }


def _read_deployments(client: SyncPrefectClient, flow: str) -> Iterator[DeploymentResponse]:
    yield from read_all(
        client.read_deployments,
        flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])),
        deployment_filter=DeploymentFilter(tags=DeploymentFilterTags(all_=["parcel"])),
    )


def _find_schedule(client: SyncPrefectClient, name: str) -> tuple[str, ScheduledStudy]:
    schedules = _read_schedules(client)
    if name in schedules:
        return name, schedules[name]
    of_study = [known for known, scheduled in schedules.items() if scheduled.study == name]
    if len(of_study) == 1:
        return of_study[0], schedules[of_study[0]]
    raise ConfigError(
        f"NAME must be one schedule of the server, got {name!r}; it has "
        f"{', '.join(of_study or schedules) or 'none'}."
    )


def _changed_times(
    name: str, times: SCHEDULE_TYPES, cron: str | None, timezone: str | None
) -> SCHEDULE_TYPES:
    if cron is None and timezone is None:
        if _next_firing(times) is None:
            raise ConfigError(
                f"--cron must be given for {name}, which never fires: {_why_never(times)}."
            )
        return times
    if cron is None and not isinstance(times, CronSchedule):
        raise ConfigError(f"--cron must come with --timezone for {name}, which has no cron so far.")
    old_zone = getattr(times, "timezone", None) or "UTC"
    return cron_schedule(cron or getattr(times, "cron", ""), timezone or old_zone)


def _changed_parameters(
    scheduled: ScheduledStudy, add: Mapping[str, Any], when: Mapping[str, Any]
) -> dict[str, Any]:
    # Checked together: the change may be what mends the old settings.
    add = {**(scheduled.parameters.get("add") or {}), **add}
    when = {**(scheduled.parameters.get("when") or {}), **when}
    return {
        "add": _changed_settings(check_values(Sweep, add, "sweep")),
        "when": _changed_settings(check_values(SweepLimits, when, "sweep")),
    }


def _changed_settings(value: Any) -> dict[str, Any]:
    """Returns the settings that differ from the defaults, as plain values."""
    return pydantic.TypeAdapter(type(value)).dump_python(value, mode="json", exclude_defaults=True)


def _sweep_and_limits(scheduled: ScheduledStudy) -> tuple[Sweep, SweepLimits]:
    parameters = scheduled.parameters
    return (
        check_values(Sweep, parameters.get("add", {}), "add"),
        check_values(SweepLimits, parameters.get("when", {}), "when"),
    )


def _check_work(sweep_run: SweepRun) -> None:
    """Checks that there is something that a firing would run."""
    if next(sweep_run.passes(), None) is None:
        raise ConfigError(
            f"--cron must fire for something, got {sweep_run.config.name}: "
            f"{sweep_run.why_nothing()}; add seeds with --add-seeds 1 and --max-seeds, or methods, "
            f"benchmarks or budgets."
        )


def _sweep_run(scheduled: ScheduledStudy, store: Store) -> SweepRun:
    parameters = scheduled.parameters
    sweep, _ = _sweep_and_limits(scheduled)
    return sweep_of_form(
        parameters.get("study", "demo"),
        store,
        parameters.get("overrides", ()),
        sweep,
        parameters.get("given"),
    )


def _describe_schedule(
    name: str, scheduled: ScheduledStudy, past: Sequence[str] = ()
) -> Iterator[str]:
    """Yields the lines on a schedule: its study and deployment, its times, and its next firing.

    sweep-demo: study demo, deployment sweep/sweep, 0 20 * * * Europe/Berlin
      next firing: 2026-11-27 20:00 Europe/Berlin
      with add_seeds=1, max_seeds=10; start=20:00, end=08:00
      sweep demo: 4 methods × 2 rows × 4 seeds × budgets 16, 64, 256: 80 cells
      ...
    """
    firing = _read_firing(name, scheduled, past)
    yield f"{name}: study {firing.study}, deployment {firing.deployment}, {firing.rule}"
    yield f"  {firing.off or f'next firing: {firing.next}'}"
    yield from (f"  {line}" for line in (*firing.past, *firing.would_run))


def _read_firing(name: str, scheduled: ScheduledStudy, past: Sequence[str]) -> Firing:
    times, deployment = scheduled.schedule.schedule, scheduled.deployment
    rule = getattr(times, "cron", None) or getattr(times, "rrule", None)
    rule = rule or f"every {getattr(times, 'interval', 'none')}"
    zone = getattr(times, "timezone", None) or "UTC"
    firing = Firing(
        name=name,
        study=scheduled.study,
        deployment=printable(f"{scheduled.flow}/{deployment.name}"),
        deployment_id=str(deployment.id),
        rule=printable(f"{rule} {zone}"),
        past=past,
    )
    if not scheduled.schedule.active:
        off = f"stopped; `parcel schedule change {name}` with any option starts it again"
        return dataclasses.replace(firing, off=off)
    if deployment.paused:
        off = "paused with its deployment: start `parcel serve`, or resume it in the UI"
        return dataclasses.replace(firing, off=off)
    date = _next_firing(times)
    if date is None:
        cure = f"`parcel schedule change {name} --cron '0 20 * * *'` gives it other times"
        return dataclasses.replace(
            firing, off=printable(f"never fires: {_why_never(times)}; {cure}")
        )
    return dataclasses.replace(
        firing,
        next=f"{date.astimezone(zoneinfo.ZoneInfo(zone)):%Y-%m-%d %H:%M} {zone}",
        would_run=_next_firing_lines(scheduled),
    )


def _next_firing_lines(scheduled: ScheduledStudy) -> tuple[str, ...]:
    # Whoever has the server's password may have written them: they get no more than their run.
    with limited(scheduled.limits):
        return tuple(map(printable, _describe_next_firing(scheduled)))


def _describe_next_firing(scheduled: ScheduledStudy) -> Iterator[str]:
    """Yields lines on a schedule's settings, and on what it would run if it fired now."""
    times = scheduled.schedule.schedule
    try:
        check_form_types(scheduled.parameters)
        limits = ALWAYS
        if scheduled.flow == "sweep":
            if (scheduled.schedule.slug or "").startswith(_SWEEP_SLUG) and not (
                scheduled.schedule.parameters
            ):
                # Prefect's server does so where an update, of its UI say, does not repeat them.
                yield (
                    "what it added is lost, since it was switched on or off elsewhere: set it "
                    "again with `parcel sweep --cron`"
                )
                return
            sweep, limits = _sweep_and_limits(scheduled)
            settings = [_settings_text(each) for each in (sweep, limits)]
            if any(settings):
                yield f"with {'; '.join(filter(None, settings))}"
        if isinstance(times, CronSchedule):
            yield from describe_days(times)
            yield from describe_clock_changes(times, limits)
        check_served_store(scheduled.store)
        store = store_here(scheduled.store)
        if store is None:
            yield f"what it would run is known where its store is, {scheduled.store}"
        elif scheduled.flow == "sweep":
            yield from describe_next_sweep(_sweep_run(scheduled, store))
        else:
            yield _describe_next_study(scheduled, store)
    except (OSError, ValueError, OverflowError) as error:
        # One schedule that cannot be read, since its file is gone perhaps, hides no other.
        yield f"what it would run is unknown: {error}"


def _describe_next_study(scheduled: ScheduledStudy, store: Store) -> str:
    parameters = scheduled.parameters
    config = study_of_form(
        parameters.get("study", "demo"),
        store,
        parameters.get("overrides", ()),
        parameters.get("data_root", ""),
        parameters.get("given"),
        parameters.get("steps", ()),
    )
    explanation = explain_study(config, store, parameters.get("until", "report"))
    graph = explanation.graph
    reused = [node for node in graph.nodes if explanation.is_node_reused(node)]
    return opening_line(graph, reused, explanation.is_reused)


def _settings_text(value: Any) -> str:
    """Returns settings as text, `add_seeds=1, methods=m3,mqt`; "" where all are the defaults."""
    return ", ".join(
        f"{name}={','.join(map(str, each)) if isinstance(each, list) else each}"
        for name, each in _changed_settings(value).items()
    )
