"""Prefect's services, which run in the background: what they do, and what is seen of a failure."""

import datetime
import json
import re
import signal
import sqlite3
import subprocess
import urllib.error
import uuid
from collections.abc import Iterator

import pytest

from tests.effects.product import PARCEL, SMALLEST, Served, environment, parcel, serving, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.deep]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose database has lost the table that only its watch over workers reads."""
    folder = tmp_path_factory.mktemp("damaged")
    log = folder / "store" / "prefect" / "server.log"
    log.parent.mkdir(parents=True)
    log.write_text("2026-11-28T09:55:05+00:00 ERROR docket.dependencies: of the one before\n")
    # Retention is Prefect's of seven days, looked at more often. Variables would not count.
    log.with_name("profiles.toml").write_text(
        'active = "own"\n[profiles.own]\nPREFECT_SERVER_SERVICES_DB_VACUUM_LOOP_SECONDS = "15"\n'
    )
    with serving(folder) as made:
        assert errors_line(made) == ""
        assert "of the one before" in log.with_name("server.log.1").read_text()
        with sqlite3.connect(made.store / "prefect" / "prefect.db", timeout=60) as database:
            database.execute("ALTER TABLE worker RENAME TO lost")
        yield made


def errors_line(served: Served) -> str:
    """What `parcel status` says of the server's errors; "" if it says nothing of them."""
    lines = parcel(served.store, "status").stdout.splitlines()
    return next((line for line in lines if line.startswith("server: ")), "")


_EVENT = "parcel.test"


def events(served: Served) -> set[str]:
    """Ids of the tests' own events of the last two weeks."""
    since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=14)
    asked = {"occurred": {"since": since.isoformat()}, "event": {"name": [_EVENT]}}
    found = served.ask("/events/filter", {"filter": asked, "limit": 50})["events"]
    return {event["id"] for event in found}


@pytest.fixture(scope="module")
def aged(damaged: Served) -> tuple[str, str]:
    """Two events that are there: one a week old in less than a minute, and one in an hour.

    They age while the test before theirs waits.
    """
    now, week = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=7)
    ages = {
        str(uuid.uuid4()): week - datetime.timedelta(seconds=40),
        str(uuid.uuid4()): week - datetime.timedelta(hours=1),
    }
    old, newer = ages
    damaged.ask(
        "/events",
        [
            {
                "id": number,
                "event": _EVENT,
                "resource": {"prefect.resource.id": _EVENT},
                "occurred": (now - age).isoformat(),
            }
            for number, age in ages.items()
        ],
    )
    wait_for(lambda: events(damaged) == {old, newer}, 50, lambda: str(events(damaged)))
    return old, newer


def test_a_run_that_nobody_starts_in_time_is_marked_late(served: Served):
    flow = served.ask("/flows/", {"name": "waits"})["id"]
    due = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    details = {"scheduled_time": due.isoformat()}
    state = {"type": "SCHEDULED", "name": "Scheduled", "state_details": details}
    run = served.ask("/flow_runs/", {"flow_id": flow, "state": state})["id"]
    assert wait_for(lambda: served.ask(f"/flow_runs/{run}")["state_name"] == "Late", 90)


def test_a_run_that_a_signal_ended_is_not_shown_as_running(served: Served):
    def status() -> str:
        return parcel(served.store, "status").stdout

    words = ("run", SMALLEST, "name=signalled", "stage1.total_steps=100000")
    with subprocess.Popen(
        [PARCEL, *words], env=environment(served.store), stdout=subprocess.DEVNULL
    ) as run:
        wait_for(lambda: "signalled " in status(), 240)
        run.send_signal(signal.SIGTERM)
        run.wait(timeout=60)
    # `howto/serving.md`: within a minute, while `parcel serve` runs.
    assert wait_for(lambda: "signalled: crashed" in status(), 90, status)


@pytest.mark.usefixtures("aged")
def test_a_service_that_dies_each_time_is_in_status_doctor_and_the_start_page(damaged: Served):
    line = wait_for(lambda: errors_line(damaged), 120, damaged.log.read_text)
    log = damaged.store / "prefect" / "server.log"
    assert " since 20" in line
    assert "OperationalError: (sqlite3.OperationalError) no such table: worker" in line
    assert line.endswith(f"(all in {log})")
    assert "SELECT" not in line
    assert "\n  in _handle_dbapi_exception, " in log.read_text()  # Where, once.
    assert log.stat().st_mode & 0o077 == 0
    assert damaged.auth.partition(":")[2] not in log.read_text()
    wait_for(lambda: "server: 1 error " not in errors_line(damaged), 120)
    assert log.read_text().count("in _handle_dbapi_exception, ") == 1
    doctor = parcel(damaged.store, "doctor", "--engine", "none")
    assert doctor.returncode == 1
    assert "BAD  prefect    " in doctor.stdout
    assert "no such table: worker" in doctor.stdout
    assert "no such table: worker" in damaged.page("/parcel/")


def test_an_event_is_deleted_once_it_is_a_week_old(damaged: Served, aged: tuple[str, str]):
    """Of two events that were there, the one that became a week old goes, the other stays."""
    wait_for(lambda: events(damaged) != {*aged}, 150, lambda: str(events(damaged)))
    assert events(damaged) == {aged[1]}


def test_a_schedule_without_dates_in_the_database_stops_no_other(served: Served):
    form = served.ask("/deployments/name/sweep/sweep")["id"]

    def add(cron: str) -> str:
        values = {"study": SMALLEST, "add": {"add_seeds": 1, "max_seeds": 9}}
        wanted = {"schedule": {"cron": cron}, "active": True, "parameters": values}
        return served.ask(f"/deployments/{form}/schedules", [wanted])[0]["id"]

    # No door takes one.
    with pytest.raises(urllib.error.HTTPError, match="409") as refused:
        add("0 0 30 2 *")
    told = json.load(refused.value)["detail"]
    assert re.search("no calendar .* month 30, month 2;", told)
    words = ("--add-seeds", "1", "--max-seeds", "9", "--cron", "0 0 31 4 *")
    done = parcel(served.store, "sweep", SMALLEST, *words)
    assert (done.returncode, done.stdout) == (2, "")
    # Before it, where another test of this store has run the study by a longer name: that run.
    *told, refusal = done.stderr.splitlines()
    assert re.match("parcel: --cron .*minute, hour, day of month", refusal), done.stderr
    assert all(": its newest run is taken, " in line for line in told), done.stderr
    # As an earlier version let them in: each of them first, and the server's thread is not lost.
    without = {
        add("1 5 * * *"): {"cron": "0 0 30 2 *", "timezone": "UTC", "day_or": True},
        add("2 5 * * *"): {"rrule": "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30", "timezone": "UTC"},
    }
    with sqlite3.connect(served.store / "prefect" / "prefect.db", timeout=60) as database:
        for schedule, times in without.items():
            changed = "UPDATE deployment_schedule SET schedule = ? WHERE id = ?"
            assert database.execute(changed, (json.dumps(times), schedule)).rowcount == 1
    fires = add("3 5 * * *")

    def planned() -> list[dict]:
        runs = served.ask("/flow_runs/filter", {"flow_runs": {"created_by": {"id_": [fires]}}})
        return [run["expected_start_time"] for run in runs]

    assert wait_for(planned, 90, lambda: parcel(served.store, "status").stdout)
    for command in (("status",), ("schedule", "list")):
        shown = parcel(served.store, *command)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.count("never fires: ") == 2, shown.stdout
        assert re.search("never fires: .* month 30, month 2", shown.stdout)
        assert " 05:03 UTC" in shown.stdout
    assert wait_for(lambda: served.page("/parcel/").count("never fires: ") == 2, 90)
    for schedule in (*without, fires):
        served.ask(f"/deployments/{form}/schedules/{schedule}", method="DELETE")
