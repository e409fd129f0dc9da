"""Times of schedules: what is accepted, in words, and that no search for a date is without end."""

import asyncio
import datetime
import time
from typing import Any

import pytest

from infra.prefect.times import cron_problem, firings, plan_each_alone, times_problem

NOW = datetime.datetime(2026, 11, 28, 12, tzinfo=datetime.UTC)
EACH = ",".join(map(str, range(60)))


@pytest.mark.parametrize(
    ("cron", "told"),
    [
        ("0 0 30 2 *", "no calendar has it: day of month 30, month 2; L is a month's last day"),
        ("0 0 31 4,6,9,11 *", "no calendar has it: day of month 31, month 4,6,9,11; L is"),
        ("0 0 30 FEB *", "no calendar has it: day of month 30, month FEB; L is"),
        (
            "0 0 30 2 1",
            "no calendar has it: day of month 30, month 2; by day of week it is '0 0 * ",
        ),
        ("* * * * * *", "it has 6; seconds and years are none of them"),
        ("0 0 1 1 * 0 2020", "it has 7; seconds and years are none of them"),
        ("daily", "it has 1"),
        ("", "it has 0"),
        ("61 * * * *", "minute takes 0-59, got '61'"),
        ("*/0 * * * *", "minute takes 0-59, got '*/0'"),
        ("0 24 * * *", "hour takes 0-23, got '24'"),
        ("0 0 1-40 * *", "day of month takes 1-31, or L for the last, got '1-40'"),
        ("0 0 * 13 *", "month takes 1-12 or JAN-DEC, got '13'"),
        ("0 0 * * 8", "day of week takes 0-7 or SUN-SAT, 0 and 7 being Sunday, got '8'"),
        ("H * * * *", "minute takes 0-59, got 'H'"),
        ("@reboot", "the names are @hourly, @daily, @weekly, @monthly and @yearly"),
    ],
)
def test_what_is_wrong_with_a_cron_is_named_by_its_field(cron: str, told: str):
    problem = cron_problem(cron)
    assert problem is not None
    assert problem.startswith(told)


@pytest.mark.parametrize(
    "cron",
    ["0 20 * * *", "*/5 * * * *", "0 0 29 2 *", "0 0 L 2 *", "0 0 * JAN SUN", "@daily", "@yearly"],
)
def test_a_cron_that_fires_is_accepted(cron: str):
    assert cron_problem(cron) is None


@pytest.mark.parametrize(
    ("rule", "is_accepted"),
    [
        ("FREQ=WEEKLY;BYDAY=MO", True),
        ("DTSTART:20200101T000000\nRRULE:FREQ=HOURLY", True),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29", True),
        ("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", False),
        ("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", False),
        ("FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30", False),
        ("FREQ=MINUTELY", False),
        ("FREQ=DAILY;UNTIL=20210101T000000", False),
        ("RRULE:FREQ=DAILY\nEXRULE:FREQ=DAILY", False),
        (f"FREQ=YEARLY;BYHOUR=1,2,3;BYMINUTE={EACH};BYSECOND={EACH}", False),
        ("nonsense", False),
        (5, False),
    ],
)
def test_a_rule_is_its_owners_and_its_dates_are_found_soon(rule: Any, is_accepted: bool):
    times, began = {"rrule": rule, "timezone": "UTC"}, time.thread_time()
    assert (times_problem(times, rules=True) is None) == is_accepted
    assert time.thread_time() - began < 10
    assert times_problem(times, rules=False) is not None


def test_firings_are_those_that_there_are():
    assert firings({"cron": "0 0 30 2 *"}, NOW) == []
    assert firings({"interval": datetime.timedelta(days=4_000_000)}, NOW, most=3) != []
    assert firings({"rrule": "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30"}, NOW) == []
    (first, second) = firings({"rrule": "FREQ=DAILY;BYHOUR=5", "timezone": "UTC"}, NOW, most=2)
    assert (f"{first:%d %H}", f"{second:%d %H}") == ("29 05", "30 05")
    # One date is left, and no second one: Prefect's own generator ends with an error.
    assert len(firings({"cron": "0 0 1 1 * 0 2027"}, NOW, most=2)) == 1


def test_the_planner_takes_no_error_for_times_without_dates():
    from prefect.server.schemas import schedules

    kinds: Any = (schedules.CronSchedule, schedules.IntervalSchedule, schedules.RRuleSchedule)
    before = [kind._get_dates_generator for kind in kinds]
    try:
        plan_each_alone()
        never = schedules.CronSchedule(cron="0 0 30 2 *")
        assert asyncio.run(never.get_dates(3, NOW)) == []
        assert len(asyncio.run(schedules.CronSchedule(cron="0 5 * * *").get_dates(3, NOW))) == 3
    finally:
        for kind, generate in zip(kinds, before, strict=True):
            kind._get_dates_generator = generate


@pytest.mark.parametrize("kind", ["cron", "rrule"])
def test_times_as_long_as_a_request_are_refused_at_once(kind: str):
    text = {"cron": "0," * 1_000_000 + "0 * * * *", "rrule": "FREQ=DAILY;BYHOUR=" + "1," * 10**6}
    began = time.process_time()
    problem = times_problem({kind: text[kind]}, rules=True)
    assert problem is not None
    assert len(problem) < 1000
    assert time.process_time() - began < 1
