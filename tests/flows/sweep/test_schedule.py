"""Schedules of a server: what they say of the clocks, and how they are listed and changed."""

import datetime
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.graph.graph import graph_of
from flows.run.limits import ALWAYS, SweepLimits
from flows.sweep.form_values import check_values, sweep_of_form
from flows.sweep.sweep import Sweep
from infra.errors import ConfigError
from infra.store.store import Store
from tests.flows.conftest import Done
from tests.flows.graph.test_explain import fill
from tests.flows.machine.test_deploy import ask, deployed
from tests.flows.sweep.test_sweep import SMALL

NOW = datetime.datetime(2026, 11, 26, 12, tzinfo=datetime.UTC)


def clock_lines(cron: str, zone: str, limits: SweepLimits = ALWAYS) -> list[str]:
    from flows.sweep.schedule import cron_schedule, describe_clock_changes

    return list(describe_clock_changes(cron_schedule(cron, zone), limits, NOW))


@pytest.mark.parametrize("zone", ["localtime", "Factory", "Europe", "Mars/Base", ""])
def test_a_zone_that_is_another_one_elsewhere_is_refused(zone: str):
    with pytest.raises(ConfigError, match=f"--timezone .*'{zone}'"):
        clock_lines("0 20 * * *", zone)


def test_two_days_of_a_cron_are_told_as_either():
    from flows.sweep.schedule import cron_schedule, describe_days

    (line,) = describe_days(cron_schedule("0 0 13 * 5", "UTC"))
    assert re.search(r"month 13\b.* week 5\b", line)
    for cron in ("0 0 13 * *", "0 0 * * 5", "0 0 */2 * 5", "@daily"):
        assert [*describe_days(cron_schedule(cron, "UTC"))] == []


def firings(cron: str, zone: str, day: str) -> list[datetime.datetime]:
    """The firings of a day, each as Prefect's server finds it when it plans shortly before."""
    import asyncio

    from prefect.server.schemas.schedules import CronSchedule

    midnight = datetime.datetime.fromisoformat(f"{day}T00:00Z")
    schedule = CronSchedule(cron=cron, timezone=zone)
    end = midnight + datetime.timedelta(days=1)
    return asyncio.run(schedule.get_dates(start=midnight, end=end))


def test_a_night_without_the_time_of_a_cron_is_told_with_the_time_that_it_fires_at():
    (line,) = clock_lines("30 2 * * *", "Europe/Berlin")
    (firing,) = firings("30 2 * * *", "Europe/Berlin", "2027-03-28")
    assert f"{firing:%H:%M}" != "02:30"
    assert re.search(rf"2027-03-28 .*Europe/Berlin .*no 02:30\b.* {firing:%H:%M} instead$", line)
    # A window that opens with the cron is closed at that time, or open for longer than it.
    (line,) = clock_lines(
        "30 2 * * *",
        "Europe/Berlin",
        SweepLimits(start="02:30", end="08:00", timezone="Europe/Berlin"),
    )
    assert f"{firing:%H:%M} instead" in line
    assert ("outside 02:30-08:00" in line) == (firing.hour < 2)
    (line,) = clock_lines(
        "30 2 * * *",
        "Europe/Berlin",
        SweepLimits(start="00:30", end="08:00", timezone="Europe/Berlin"),
    )
    assert line.endswith("instead")


def test_times_that_every_day_has_once_are_told_nothing_of():
    assert clock_lines("0 20 * * *", "Europe/Berlin") == []
    assert clock_lines("30 2 * * *", "UTC") == []
    assert clock_lines("30 2 * * *", "Asia/Tokyo") == []
    # The hour comes twice in October; Prefect fires in its first pass alone.
    assert clock_lines("30 2 24-31 10 *", "Europe/Berlin") == []
    assert clock_lines("30 2 * 6 *", "Europe/Berlin") == []


def test_other_zones_and_finer_crons_are_told_too():
    (line,) = clock_lines("30 2 * * *", "America/New_York")
    assert re.search(r"2027-03-14 .*America/New_York .*no 02:30", line)
    (line,) = clock_lines("15 2 * * *", "Australia/Lord_Howe")  # By half an hour, in October.
    assert line.startswith("on 2027-10-03 ")
    (line,) = clock_lines("0 * * * *", "Europe/Berlin")
    assert line.endswith("no 02:00, no firing")
    (line,) = clock_lines("*/10 2 * * *", "Europe/Berlin")
    assert "no 02:00, 02:10, 02:20 and 3 more" in line


@pytest.fixture
def full(tmp_path: Path) -> Store:
    """A store with every cell of a small study."""
    store = Store(tmp_path / "store")
    study = sweep_of_form("demo", store, SMALL, check_values(Sweep, {}, "sweep"))
    fill(store, graph_of(study.config))
    return store


@pytest.mark.slow
@pytest.mark.usefixtures("served_store")
def test_a_schedule_is_listed_changed_and_stopped(full: Store, parcel: Callable[..., Done]):
    deployed("owls", store=full.uri)
    deployed("rooks", store=full.uri, cron="15 5 * * *")
    there = "--store", full.uri

    def of(flow: str, name: str) -> Any:
        (schedule,) = ask("GET", f"/deployments/name/{flow}/{name}")["schedules"]
        return schedule

    # One that would add nothing is refused before there is a schedule.
    words = ("sweep", "demo", *SMALL, "name=owls", *there, "--cron", "30 2 * * *")
    refused = parcel(*words)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert re.match(r"parcel: --cron .*owls: .*2 seeds", refused.err), refused.err
    assert ask("GET", "/deployments/name/sweep/owls")["schedules"] == []
    options = "--add-seeds", "1", "--max-seeds", "5", "--timezone", "Europe/Berlin"
    done = parcel(*words, *options, "--from", "02:30", "--to", "08:00")
    assert done.code == 0, done.err
    assert re.search(r"Europe/Berlin .*no 02:30\b", done.out)
    before = of("sweep", "owls")
    # All that there are, each with its study, its next firing and what that would run.
    listed = parcel("schedule", "list", *there).out
    assert "sweep-owls: study owls, deployment sweep/owls, 30 2 * * * Europe/Berlin\n" in listed
    assert "study-rooks: study rooks, deployment study/rooks, 15 5 * * * UTC\n" in listed
    entry = listed[listed.index("sweep-owls") :].splitlines()
    assert entry[1].startswith("  next firing: 20")
    assert entry[1].endswith(" 02:30 Europe/Berlin")
    for value in ("add_seeds=1", "max_seeds=5", "start=02:30", "end=08:00"):
        assert value in entry[2]
    assert entry[3].startswith("  on 20")
    assert entry[4].startswith("  sweep owls: 2 methods × 1 row × 3 seeds × budgets 256: 6 cells")
    assert "; to make: " in listed  # Of the other.
    # What is stated changes, and the rest stays.
    changed = parcel(
        "schedule", "change", "owls", *there, "--cron", "0 22 * * *", "--max-seeds", "4"
    )
    assert changed.code == 0, changed.err
    after = of("sweep", "owls")
    assert after["schedule"]["cron"] == "0 22 * * *"
    assert after["schedule"]["timezone"] == "Europe/Berlin"
    assert after["parameters"] == {
        **before["parameters"],
        "add": {"add_seeds": 1, "max_seeds": 4},
    }
    assert "there is no" not in changed.out
    back = parcel(
        "schedule", "change", "owls", *there, "--from", "", "--to", "", "--timezone", "UTC"
    )
    assert back.code == 0, back.err
    assert of("sweep", "owls")["parameters"]["when"] == {}
    assert of("sweep", "owls")["schedule"]["timezone"] == "UTC"
    # A change after which a firing adds nothing is refused, and changes nothing.
    vain = parcel("schedule", "change", "owls", *there, "--add-seeds", "0")
    assert (vain.code, vain.err.count("\n")) == (2, 1)
    assert "nothing to run" in vain.err
    assert of("sweep", "owls")["parameters"]["add"] == {"add_seeds": 1, "max_seeds": 4}
    # Stopped, it stays on the list, and a change starts it again.
    stopped = parcel("schedule", "stop", "sweep-owls", *there)
    assert stopped.out.startswith("sweep-owls: stopped")
    assert of("sweep", "owls")["active"] is False
    assert (
        "  stopped; `parcel schedule change sweep-owls`" in parcel("schedule", "list", *there).out
    )
    assert parcel("schedule", "stop", "owls", *there).out.startswith("sweep-owls: was stopped")
    assert parcel("schedule", "change", "owls", *there, "--max-hours", "8").code == 0
    assert of("sweep", "owls")["active"] is True
    assert of("sweep", "owls")["parameters"]["add"] == {"add_seeds": 1, "max_seeds": 4}
    wrong = {
        ("stop", "nobody"): "NAME must be one schedule of the server, got 'nobody'; it has ",
        ("change", "owls"): "change must come with an option",
        ("change", "owls", "--cron", "daily"): "--cron must be five fields",
        ("change", "owls", "--cron", "0 0 30 2 *"): "--cron must be five fields",
        ("change", "owls", "--until", "noon"): "--until must be decided, got 'noon'",
        ("change", "owls", "--seeds", "5"): "sweep: seeds must be at most max_seeds=4, got 5",
        ("change", "owls", "--add-seeds", "0", "--until", "decided"): "sweep: max_seeds must be at "
        "least least_seeds=17",
        ("change", "rooks", "--add-seeds", "1"): "options of a sweep must be for the schedule",
    }
    for words, message in wrong.items():
        refused = parcel("schedule", *words, *there)
        assert (refused.code, refused.err.count("\n")) == (2, 1), (words, refused.out)
        assert refused.err.startswith(f"parcel: {message}"), refused.err
    for name in ("sweep-owls", "study-rooks"):
        assert name in parcel("schedule", "stop", "nobody", *there).err


@pytest.mark.slow
@pytest.mark.usefixtures("served_store")
def test_schedules_of_one_name_are_told_apart_by_their_ids(tmp_path: Path):
    from flows.sweep.schedule import list_schedules, stop_schedule

    deployed("twins", store=str(tmp_path / "elsewhere"), cron="0 6 * * *")
    found = ask("GET", "/deployments/name/study/twins")
    weekly = {"schedule": {"interval": 604800, "timezone": "UTC"}, "active": True}
    ask("POST", f"/deployments/{found['id']}/schedules", [weekly])
    ids = [s["id"] for s in ask("GET", "/deployments/name/study/twins")["schedules"]]
    lines = list(list_schedules())
    heads = [line for line in lines if line.startswith("study-twins-")]
    assert {head.partition(":")[0] for head in heads} == {f"study-twins-{i[-8:]}" for i in ids}
    assert any(head.endswith("every 7 days, 0:00:00 UTC") for head in heads)
    assert any(line.endswith(f" {tmp_path}/elsewhere") for line in lines)
    # Prefect's server empties the parameters of a schedule that is switched without them.
    wide = ask("GET", "/deployments/name/sweep/twins")
    swept = {**weekly, "slug": "sweep-twins", "parameters": {"add": {"add_seeds": 1}}}
    (row,) = ask("POST", f"/deployments/{wide['id']}/schedules", [swept])
    assert "  with add_seeds=1" in list(list_schedules())
    path = f"/deployments/{wide['id']}/schedules/{row['id']}"
    ask("PATCH", path, {"active": True})
    assert any(line.startswith("  what it added is lost") for line in list_schedules())
    ask("POST", f"/deployments/{wide['id']}/pause_deployment")
    assert any(line.startswith("  paused with its deployment") for line in list_schedules())
    ask("DELETE", path)
    with pytest.raises(ConfigError, match=r"NAME .*study-twins-") as no:
        list(stop_schedule("twins"))
    assert all(id[-8:] in str(no.value) for id in ids)


@pytest.mark.slow
def test_without_a_server_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parcel: Callable[..., Done]
):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    Store(tmp_path / "store")
    for words in (("list",), ("stop", "mine"), ("change", "mine", "--cron", "0 6 * * *")):
        done = parcel("schedule", *words, "--store", tmp_path / "store")
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "`parcel serve" in done.err


def scheduled(times: dict[str, Any], slug: str | None = None) -> Any:
    """A schedule of the sweep's deployment, as the server's API gives it."""
    import uuid

    from prefect.client.schemas.objects import DeploymentSchedule
    from prefect.client.schemas.responses import DeploymentResponse

    from flows.sweep.schedule import ScheduledStudy

    values = {"id": str(uuid.uuid4()), "name": "sweep", "flow_id": str(uuid.uuid4())}
    deployment = DeploymentResponse.model_validate(
        {**values, "parameters": {"store": "s3://away/s"}}
    )
    schedule = DeploymentSchedule.model_validate(
        {"schedule": times, "active": True, "slug": slug, "id": str(uuid.uuid4())}
    )
    return ScheduledStudy(flow="sweep", deployment=deployment, schedule=schedule)


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ({"interval": 3e11}, "its times have no date left"),
        ({"cron": "0 0 30 2 *"}, "no calendar has it: day of month 30, month 2; L is a month's"),
        ({"cron": "0 0 1 1 * 0 2020"}, "it has 7; seconds and years are none of them"),
        ({"rrule": "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30"}, "its times have no date left"),
    ],
)
def test_a_schedule_without_dates_never_fires_and_says_so(times: dict[str, Any], told: str):
    from flows.sweep.schedule import _changed_times, _describe_schedule

    lines = list(_describe_schedule("sweep-demo", scheduled(times)))
    assert lines[0].startswith("sweep-demo: study demo, deployment sweep/sweep, ")
    assert lines[1].startswith(f"  never fires: {told}")
    assert "`parcel schedule change sweep-demo --cron '0 20 * * *'`" in lines[1]
    with pytest.raises(ConfigError, match=r"--cron .*sweep-demo"):
        _changed_times("sweep-demo", scheduled(times).schedule.schedule, None, None)


def test_the_next_date_of_a_rule_is_told():
    from flows.sweep.schedule import _describe_schedule

    lines = list(_describe_schedule("sweep-demo", scheduled({"rrule": "FREQ=DAILY;BYHOUR=5"})))
    assert lines[1].startswith("  next firing: 20")
    assert lines[1].endswith(" 05:00 UTC")


def test_a_name_from_the_server_commands_no_terminal():
    from flows.sweep.schedule import _describe_schedule

    shown = scheduled({"cron": "0 5 * * *"}, "sweep-a\x1b]0;x\x07\u202eb\n")
    assert shown.study == r"a\x1b]0;x\x07\u202eb\n"
    lines = list(_describe_schedule(f"sweep-{shown.study}", shown))
    assert all(line.isprintable() for line in lines)
