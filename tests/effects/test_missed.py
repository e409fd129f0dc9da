"""Firings that come while the server is down or asleep, or while the one before still runs."""

import datetime
import time
from pathlib import Path

import psutil
import pytest

from tests.effects.product import SMALLEST, Served, parcel, serving, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.night]

_WITHIN = 400.0
"""Longest wait for a firing to begin, on a busy machine [s]."""


def schedule(served: Served, cron: str, name: str, **parameters: object) -> str:
    """Sets a schedule of the form of a study; returns its id."""
    form = served.ask("/deployments/name/study/study")["id"]
    values = {"study": SMALLEST, "overrides": [f"name={name}"], **parameters}
    wanted = {"schedule": {"cron": cron}, "active": True, "parameters": values}
    return served.ask(f"/deployments/{form}/schedules", [wanted])[0]["id"]


def firings(served: Served, schedule: str) -> list[dict]:
    """The firings of a schedule that are due, the first first."""
    now = datetime.datetime.now(datetime.UTC).isoformat()
    asked = {"created_by": {"id_": [schedule]}, "expected_start_time": {"before_": now}}
    return served.ask("/flow_runs/filter", {"flow_runs": asked, "sort": "EXPECTED_START_TIME_ASC"})


def test_firings_while_the_server_was_down_are_told_and_one_of_them_begins(tmp_path: Path):
    with serving(tmp_path) as served:
        often = schedule(served, "* * * * *", "often", approve=True)
        due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=2)
        once = schedule(served, f"{due.minute} {due.hour} * * *", "once", approve=True)

        def planned() -> bool:
            return {once, often} <= {(run["created_by"] or {}).get("id") for run in served.runs()}

        wait_for(planned, 90, served.log.read_text)
        assert served.command is not None
        served.command.kill()  # As by a loss of power: it plans nothing away.
        served.command.wait()
    down = time.monotonic()
    told = parcel(tmp_path / "store", "status").stdout
    assert "no server runs that fires schedules; `parcel serve` starts it and says what" in told
    wait_for(lambda: time.monotonic() - down > 150, 180)
    with serving(tmp_path) as served:
        # Of those that were due at once the newest waits for approval, and so does the one that
        # was due once; the others began nothing.
        def waiting(schedule: str) -> list[dict]:
            return [run for run in firings(served, schedule) if run["state_type"] == "PAUSED"]

        wait_for(lambda: waiting(often), _WITHIN, served.log.read_text)
        wait_for(lambda: waiting(once), _WITHIN, served.log.read_text)

        def skipped() -> list[str]:
            runs = [run for run in firings(served, often) if run["state_name"] == "Skipped"]
            return [run["state"]["message"] for run in runs]

        messages = wait_for(
            lambda: found if len(found := skipped()) >= 3 else None, _WITHIN, served.log.read_text
        )
        assert sum(message.startswith("missed: that of ") for message in messages) >= 2, messages
        # A minute later another one is due, while the first waits.
        wait_for(lambda: any("waits for approval" in message for message in skipped()), _WITHIN)
        assert len(waiting(often)) == 1
        shown = parcel(served.store, "schedule", "list").stdout
        assert "  missed: " in shown
        assert "when nothing that starts runs was there or free; the next one makes" in shown
        assert " waits for approval (run often " in shown
        assert " began " in shown
        assert " min late" in shown
        assert "missed: " in parcel(served.store, "status").stdout
        assert wait_for(lambda: "missed: " in served.page("/parcel/"), 90)


def test_a_firing_that_was_due_while_the_machine_slept_begins_late(tmp_path: Path):
    with serving(tmp_path) as served:
        due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=2)
        once = schedule(served, f"{due.minute} {due.hour} * * *", "slept", approve=True)
        due = due.replace(second=0, microsecond=0)

        def planned() -> bool:
            return once in {(run["created_by"] or {}).get("id") for run in served.runs()}

        wait_for(planned, 90, served.log.read_text)
        assert served.command is not None
        # A laptop that is closed before the time, and opened after it.
        command = psutil.Process(served.command.pid)
        family = [command, *command.children(recursive=True)]
        for process in family:
            process.suspend()
        try:
            wake = due + datetime.timedelta(seconds=100)
            wait_for(lambda: datetime.datetime.now(datetime.UTC) > wake, 300)
        finally:
            for process in family:
                process.resume()

        def waits() -> bool:
            return [run["state_type"] for run in firings(served, once)] == ["PAUSED"]

        wait_for(waits, _WITHIN, served.log.read_text)
        for command_words in (("status",), ("schedule", "list")):
            shown = parcel(served.store, *command_words).stdout
            assert f"the firing of {due:%Y-%m-%d %H:%M} UTC began " in shown, shown
            assert " late" in shown
