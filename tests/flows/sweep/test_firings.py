"""Firings of a schedule: which begins of several that are due, and what is told of the others."""

import dataclasses
import datetime
import re
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

NOW = datetime.datetime(2026, 11, 28, 12, 0, 30, tzinfo=datetime.UTC)


def firing(at: str, state: Any = None, *, began: str = "", run_count: int = 1) -> Any:
    """A run of a schedule that is due at a time of today, and began at another."""
    from prefect.client.schemas.objects import FlowRun
    from prefect.states import Scheduled

    values = {
        "id": uuid.uuid4(),
        "flow_id": uuid.uuid4(),
        "name": "owls",
        "run_count": run_count,
        "expected_start_time": time(at),
        "start_time": time(began) if began else None,
        "state": state or Scheduled(),
    }
    return FlowRun.model_validate(values)


def time(at: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(f"2026-11-28T{at}:00+00:00")


def test_of_several_that_are_due_the_newest_begins():
    from flows.sweep.firings import why_skipped

    nine, ten, eleven = firing("09:00"), firing("10:00"), firing("11:00")
    began = time("11:01")
    why = why_skipped(nine, [eleven, ten], (), began)
    assert re.match(r"missed: .*2026-11-28 11:00 UTC", why or "")
    assert why_skipped(eleven, [ten, nine], (), began) is None
    # One that became due while the process of this one was starting takes nothing from it.
    assert why_skipped(ten, [eleven, nine], (), time("10:59")) is None
    # What somebody retries by hand is wanted.
    assert why_skipped(firing("09:00", run_count=2), [eleven, ten], (), began) is None


def test_none_begins_beside_one_that_works_or_waits_for_approval():
    from prefect.states import Paused, Running

    from flows.sweep.firings import why_skipped

    for state, does in ((Running(), "still runs"), (Paused(), "waits for approval")):
        nine, ten = firing("09:00", state), firing("10:00")
        living = {str(nine.id)}
        why = f"the firing of 2026-11-28 09:00 UTC {does} (run owls {str(nine.id)[-12:]})"
        assert why_skipped(ten, [nine], living, time("10:00")) == why
        again = firing("08:00", run_count=2)
        assert why_skipped(again, [nine], living, time("10:00")) == why
        # Its row may say so of one whose machine is gone: it holds nothing any more.
        assert why_skipped(ten, [nine], (), time("10:00")) is None


@dataclasses.dataclass
class Rows:
    """Rows of a server."""

    runs: Sequence[Any]

    def read_flow_runs(self, **_: Any) -> Sequence[Any]:
        return self.runs


def lines(runs: Sequence[Any], cron: str = "0 * * * *", can_start: bool = True) -> list[str]:
    from prefect.client.schemas.objects import DeploymentSchedule
    from prefect.client.schemas.schedules import CronSchedule

    from flows.sweep.firings import past_lines

    schedule = DeploymentSchedule(
        id=uuid.uuid4(), schedule=CronSchedule(cron=cron, timezone="Europe/Berlin"), active=True
    )
    schedule.updated = time("08:30")  # pyright: ignore[reportAttributeAccessIssue]
    rows: Any = Rows(runs)
    return list(past_lines(rows, schedule, can_start=can_start, now=NOW))


def test_firings_that_came_are_told_nothing_of():
    from prefect.states import Completed

    whole = [
        firing(f"{hour:02}:00", Completed(), began=f"{hour:02}:00") for hour in (12, 11, 10, 9)
    ]
    assert lines(whole) == []


def test_what_was_missed_late_or_skipped_is_told():
    from prefect.states import Completed

    def hidden(at: str, message: str) -> Any:
        return firing(at, Completed(name="Skipped", message=message), began=at)

    (line,) = lines([])
    first, last = "2026-11-28 10:00 Europe/Berlin", "2026-11-28 12:00 Europe/Berlin"
    assert re.match(rf"missed: 3 firings .*{first}.*{last}", line)
    (line,) = lines(
        [
            hidden("10:00", "missed: that of 11:00"),
            firing("11:00", Completed()),
            firing("09:00", Completed()),
        ]
    )
    assert re.match("missed: .*2026-11-28 11:00 Europe/Berlin", line)
    done = [firing("09:00", Completed()), firing("11:00", Completed(), began="11:20")]
    skipped, late = lines([*done, hidden("10:00", "the firing of 09:00 still runs")])
    assert re.match("skipped: .*2026-11-28 11:00 Europe/Berlin: the firing of 09:00", skipped)
    assert re.search("2026-11-28 12:00 Europe/Berlin .*20 min late", late)
    # Each has its own reason.
    nine, eight = (f"the firing of {at} still runs" for at in ("09:00", "08:00"))
    kept = [firing("12:00", Completed()), hidden("11:00", nine), hidden("10:00", nine)]
    assert lines([*kept, hidden("09:00", eight)]) == [
        "skipped: 2 firings since 2026-11-28 11:00 Europe/Berlin, the last of 2026-11-28 12:00 "
        f"Europe/Berlin: {nine}",
        f"skipped: the firing of 2026-11-28 10:00 Europe/Berlin: {eight}",
    ]
    for can_start, then in (
        (True, "it begins when a run may"),
        (False, "nothing starts it: `parcel serve` does"),
    ):
        late = [firing("11:00"), firing("10:00"), firing("09:00", Completed())]
        (line,) = lines(late, can_start=can_start)
        due = "2026-11-28 12:00 Europe/Berlin, by 1 h 0 min, and 1 before it"
        assert re.match(rf"late: .*{due}.*; {re.escape(then)}", line)


@pytest.mark.parametrize("cron", ["* * * * *", "0 0 30 2 *", "0 0 * * 1"])
def test_every_missed_firing_is_counted(cron: str):
    told = " ".join(lines([], cron))
    assert ("209 firings since" in told) == (cron == "* * * * *"), told
    assert bool(told) == (cron == "* * * * *")
