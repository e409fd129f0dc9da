"""Runs and schedules steered in Prefect's UI, by mouse: what a click says is what happens."""

import contextlib

import psutil
import pytest

from tests.effects.browser import DIALOG, Page
from tests.effects.product import SMALLEST, Served, parcel, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

_WITHIN = 400.0
"""Longest wait for a run to do something, on a busy machine [s]."""
_ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def start(served: Served, **parameters: object) -> str:
    """Starts a run of the smallest study as its form does; returns the run's id."""
    form = served.ask("/deployments/name/study/study")["id"]
    asked = {"parameters": {"study": SMALLEST, **parameters}}
    return served.ask(f"/deployments/{form}/create_flow_run", asked)["id"]


def reach(served: Served, run: str, *kinds: str) -> str:
    """Waits for a state of a run; returns its message."""

    def look() -> dict | None:
        state = served.ask(f"/flow_runs/{run}")["state"]
        assert state["type"] in kinds or state["type"] not in _ENDED, state
        return state if state["type"] in kinds else None

    return wait_for(look, _WITHIN, served.log.read_text)["message"] or ""


def processes_of(run: str) -> list[int]:
    """The processes that work for a run: they have its id in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if run in process.environ().values() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def choose(page: Page, item: str, confirm: str) -> None:
    """Chooses from the menu of the run's page, and confirms."""
    page.press("Open menu")
    page.press(item)
    page.press(confirm, DIALOG)
    page.wait(f"!document.querySelector('{DIALOG}')")


def shows(page: Page, state: str) -> None:
    """Waits until the run's page has a state as its badge."""
    page.wait(
        "[...document.querySelectorAll('main span, main div')]"
        f".some(part => part.childElementCount < 2 && part.innerText.trim() === '{state}')"
    )


@pytest.mark.night  # Three runs and five dialogs of the UI, which take minutes on a busy machine.
def test_a_run_is_approved_cancelled_and_tried_again_by_mouse(served: Served, page: Page):
    run = start(served, overrides=["name=clicked"], approve=True)
    reach(served, run, "PAUSED")
    page.resize(1400, 1000)
    page.open(served.link("/v2/dashboard"), "document.querySelectorAll('#root *').length > 15")
    page.open(
        f"{served.url}/v2/runs/flow-run/{run}", "document.body.innerText.includes('Open menu')"
    )
    shows(page, "Paused")
    # Approved, it works.
    choose(page, "Resume", "Resume")
    reach(served, run, "RUNNING")
    steps = {
        "flow_runs": {"id": {"any_": [run]}},
        "task_runs": {"state": {"type": {"any_": ["RUNNING"]}}},
    }
    wait_for(lambda: served.ask("/task_runs/filter", steps), _WITHIN, served.log.read_text)
    shows(page, "Running")
    assert processes_of(run)
    # A pause would be shown and not kept: it is refused, and says what to do.
    page.press("Open menu")
    page.press("Pause")
    page.press("Pause Flow Run", DIALOG)
    page.wait("document.body.innerText.includes('a run cannot be paused under way: Cancel ends')")
    page.press("Cancel", DIALOG)
    page.wait(f"!document.querySelector('{DIALOG}')")
    # Cancelled, it ends with all its processes.
    choose(page, "Cancel", "Cancel Flow Run")
    reach(served, run, "CANCELLED")
    wait_for(lambda: not processes_of(run), 60, lambda: str(processes_of(run)))
    shows(page, "Cancelled")
    wait_for(lambda: "clicked: cancelled" in parcel(served.store, "status").stdout, 60)
    # Tried again, it asks again, and makes what is missing.
    choose(page, "Retry", "Retry")
    reach(served, run, "PAUSED")
    shows(page, "Paused")
    choose(page, "Resume", "Resume")
    told = reach(served, run, "COMPLETED")
    assert told.startswith("complete: "), told
    assert " made, " in told
    shows(page, "Completed")
    assert "clicked: complete" in parcel(served.store, "status").stdout


def test_the_switch_of_a_schedule_stops_and_starts_it_as_it_was(served: Served, page: Page):
    form = served.ask("/deployments/name/sweep/sweep")["id"]
    values = {"study": SMALLEST, "add": {"add_seeds": 1, "max_seeds": 9}}
    wanted = {"schedule": {"cron": "30 5 * * *"}, "active": True, "parameters": values}
    (made,) = served.ask(f"/deployments/{form}/schedules", [wanted])

    def planned() -> list[dict]:
        runs = [r for r in served.runs() if r["deployment_id"] == form]
        return [r for r in runs if (r["created_by"] or {}).get("id") == made["id"]]

    def schedule() -> dict:
        schedules = served.ask("/deployments/name/sweep/sweep")["schedules"]
        return next(each for each in schedules if each["id"] == made["id"])

    wait_for(planned, 90, served.log.read_text)
    page.resize(1400, 1000)
    page.open(served.link("/v2/dashboard"), "document.querySelectorAll('#root *').length > 15")
    name = "toggle At 05:30 AM"  # The page has the switches of other tests' schedules, too.
    switch = f"document.querySelector('#root [role=switch][aria-label=\"{name}\"]')"
    page.open(f"{served.url}/v2/deployments/deployment/{form}", f"!!{switch}")
    page.press(name)
    wait_for(lambda: not schedule()["active"], 60, page.text)
    assert not planned()  # What was planned is gone with it.
    assert schedule()["parameters"] == values
    page.wait(f"{switch}.ariaChecked === 'false'")
    page.press(name)
    wait_for(lambda: schedule()["active"], 60, page.text)
    assert schedule()["parameters"] == values
    run = wait_for(planned, 90, served.log.read_text)[0]
    assert run["parameters"]["add"] == values["add"]
    listed = parcel(served.store, "schedule", "list").stdout
    assert "with add_seeds=1, max_seeds=9" in listed
    served.ask(f"/deployments/{form}/schedules/{made['id']}", method="DELETE")
