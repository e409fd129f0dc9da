"""The times at which schedules fire: which are accepted, and how they are found within bounds.

Prefect plans the runs of all schedules of a deployment at once, in its server's only thread. A cron
that no calendar has ends the planning of all of them with an error; a rule (RFC 5545) without dates
is searched until the year 9999, while the server answers nobody. So no door takes such times, see
`times_problem`, and those that are there already have no dates, see `plan_each_alone`.
"""

import datetime
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dateutil import rrule as dateutil_rules

from infra.time_zones import is_time_zone

_FIELDS = {
    "minute": "0-59",
    "hour": "0-23",
    "day of month": "1-31, or L for the last",
    "month": "1-12 or JAN-DEC",
    "day of week": "0-7 or SUN-SAT, 0 and 7 being Sunday",
}
"""Field of a cron -> what it takes."""
_NAMED_CRONS = re.compile("@(hourly|daily|midnight|weekly|monthly|yearly|annually)")
_INTERVALS = (60.0, 10 * 366 * 86_400.0)
"""Shortest and longest interval [s]."""
_FINE_RULE = re.compile("FREQ=(MINUTE|SECOND)LY", re.IGNORECASE)
_KINDS = {
    "cron": {"cron", "timezone", "day_or"},
    "interval": {"interval", "anchor_date", "timezone"},
    "rrule": {"rrule", "timezone"},
}
"""Kind of a schedule, by the field that it alone has -> all of its fields."""
_PLANNED = 3
"""Firings that Prefect plans ahead in any case."""
_NO_DATES = (ValueError, OverflowError)
"""Errors of times without dates: a day that no calendar has, or that is beyond its end."""

_SEARCH = 2.0
"""Longest search for the next dates of a rule [s of the processor]; an hourly one since 2020, where
Prefect has rules begin that do not say so, takes half of one."""
_LONGEST = 400
"""Most characters of a cron or a rule: a list of all minutes has 169."""
_MOST_A_DAY = 24 * 60
"""Most firings of a rule on one day."""


class _BoundedSearch(dateutil_rules._iterinfo):
    """The place in a rule's calendar, which gives up a search that takes too long.

    `dateutil` asks it for the days of each year, month, week or day that it tries, whether or not
    one of them is a date of the rule.
    """

    def __init__(self, rrule: Any) -> None:
        super().__init__(rrule)
        if len(rrule._timeset or ()) > _MOST_A_DAY:
            raise ValueError(f"the rule has more than {_MOST_A_DAY:,} times a day")
        self._end = time.thread_time() + _SEARCH

    def _check_search_time(self) -> None:
        if time.thread_time() > self._end:
            raise ValueError(f"no date of the rule was found in {_SEARCH} s")

    def ydayset(self, year: int, month: int, day: int) -> Any:
        self._check_search_time()
        return super().ydayset(year, month, day)

    def mdayset(self, year: int, month: int, day: int) -> Any:
        self._check_search_time()
        return super().mdayset(year, month, day)

    def wdayset(self, year: int, month: int, day: int) -> Any:
        self._check_search_time()
        return super().wdayset(year, month, day)

    def ddayset(self, year: int, month: int, day: int) -> Any:
        self._check_search_time()
        return super().ddayset(year, month, day)


dateutil_rules._iterinfo = _BoundedSearch  # pyright: ignore[reportPrivateUsage]


def plan_each_alone() -> None:
    """Has Prefect, in this process, plan nothing for times without dates, and the others."""
    from prefect.server.schemas import schedules

    kinds: Any = (schedules.CronSchedule, schedules.IntervalSchedule, schedules.RRuleSchedule)
    for kind in kinds:
        kind._get_dates_generator = _schedule_date_generator(kind._get_dates_generator)


def _schedule_date_generator(
    generate: Callable[..., Iterator[Any]],
) -> Callable[..., Iterator[Any]]:
    """Returns a generator of dates that ends where there are no more, instead of an error."""

    def dates(*args: Any, **options: Any) -> Iterator[Any]:
        try:
            yield from generate(*args, **options)
        except _NO_DATES:  # `parcel schedule list` says of such a schedule that it never fires.
            return

    return dates


def firings(
    times: Mapping[str, Any],
    start: datetime.datetime,
    end: datetime.datetime | None = None,
    *,
    most: int | None = None,
) -> list[datetime.datetime]:
    """Returns the times, in UTC, at which a schedule fires from `start` on, as its server has them.

    Args:
      times: the schedule as Prefect's API takes it, of one of `_KINDS`.
      start: begin of the time that is looked at.
      end: its end.
      most: most firings that are returned; None returns 1, or up to 1,000 if there is an `end`.
    """
    from prefect.server.schemas import schedules

    kinds = {
        "cron": schedules.CronSchedule,
        "interval": schedules.IntervalSchedule,
        "rrule": schedules.RRuleSchedule,
    }
    schedule = next((kind(**times) for name, kind in kinds.items() if name in times), None)
    if schedule is None:
        return []
    dates = _schedule_date_generator(schedule._get_dates_generator)(n=most, start=start, end=end)
    # In UTC: the two passes of an hour that comes twice are equal in their own time zone.
    return sorted(date for each in dates if (date := each.astimezone(datetime.UTC)) >= start)


def times_problem(times: Any, *, rules: bool) -> str | None:
    """Returns why a schedule is not accepted, in a sentence; None if it is.

    Args:
      times: schedule as Prefect's API takes it.
      rules: whether it may be a rule, `{"rrule": "FREQ=WEEKLY"}`.
    """
    rule = ", or a rule (rrule) of hours or longer" if rules else ""
    wrong = (
        f"schedule must be a cron of five fields, or an interval of 1 minute to 10 years{rule}, "
        f"that has dates, with a time zone; got {json.dumps(times):.200}"
    )
    if not isinstance(times, dict):
        return f"{wrong}."
    kind = next((name for name in _KINDS if name in times), "")
    if not (kind and times.keys() <= _KINDS[kind]) or (kind == "rrule" and not rules):
        return f"{wrong}."
    texts = [times.get(name) for name in ("timezone", "anchor_date")]
    if any(text is not None and not isinstance(text, str) for text in texts):
        return f"{wrong}."
    if times.get("timezone") is not None and not is_time_zone(times["timezone"]):
        return f"{wrong}."
    if not isinstance(times.get("day_or", True), bool):
        return f"{wrong}."
    value = times[kind]
    if kind != "interval" and not isinstance(value, str):
        return f"{wrong}."
    if isinstance(value, str) and len(value) > _LONGEST:
        return f"{wrong}: at most {_LONGEST} characters are accepted."
    # All dates since the rule's begin are gone through at each planning.
    if kind == "rrule" and _FINE_RULE.search(value):
        return f"{wrong}."
    if kind == "cron" and (why := cron_problem(value)):
        return f"{wrong}: {why}."
    if kind == "interval" and not (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and _INTERVALS[0] <= value <= _INTERVALS[1]
    ):
        return f"{wrong}."
    try:
        dates = firings(times, datetime.datetime.now(datetime.UTC), most=_PLANNED)
    except Exception:  # Of many kinds, also of the libraries below Prefect.
        dates = []
    return None if dates else f"{wrong}."


def cron_problem(cron: str) -> str | None:
    """Returns what is wrong with a cron, in a clause that names the field; None if it fires."""
    if len(cron) > _LONGEST:
        return f"it has {len(cron):,} characters, and at most {_LONGEST} are accepted"
    fields = cron.split()
    if _NAMED_CRONS.fullmatch(cron):
        return None
    if cron.startswith("@"):
        return "the names are @hourly, @daily, @weekly, @monthly and @yearly"
    if len(fields) != len(_FIELDS):
        also = "; seconds and years are none of them" if len(fields) in (6, 7) else ""
        return f"it has {len(fields)}{also}"
    for i, (name, takes) in enumerate(_FIELDS.items()):
        alone = ["*"] * len(_FIELDS)
        alone[i] = fields[i]
        if not _is_cron(" ".join(alone)):
            return f"{name} takes {takes}, got {fields[i]!r}"
    now = datetime.datetime.now(datetime.UTC)
    if not _is_cron(cron):
        return "it is none"
    if not firings({"cron": cron}, now):
        # Cron asks for either of two days, but Prefect gives up at one that never comes.
        alone = " ".join([*fields[:2], "*", *fields[3:]])
        cure = "L is a month's last day" if fields[4] == "*" else f"by day of week it is {alone!r}"
        return f"no calendar has it: day of month {fields[2]}, month {fields[3]}; {cure}"
    return None


def _is_cron(cron: str) -> bool:
    from prefect.server.schemas.schedules import CronSchedule

    try:
        CronSchedule(cron=cron)
    except ValueError:
        return False
    return True
