"""From Prefect's pages to ours by mouse, and what our tables and their files then hold."""

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.effects.browser import Page
from tests.effects.product import SMALLEST, Served, parcel, wait_for
from tests.effects.test_form import DRAWN

pytestmark = [pytest.mark.e2e, pytest.mark.deep]


@pytest.fixture(scope="module")
def run(served: Served) -> dict[str, Any]:
    """A run of the command that has ended, as Prefect's API has it."""
    words = ("name=linked", "--tag", "night", "--note", "=the first one")
    done = parcel(served.store, "run", SMALLEST, *words, timeout=800)
    assert done.returncode == 0, done.stderr
    return next(run for run in served.runs() if run["name"] == "linked")


@pytest.fixture
def own_page(served: Served, page: Page, tmp_path: Path) -> Page:
    """A browser that is logged in, and whose files come into the test's folder."""
    page.resize(1400, 1000)
    page.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.open(served.link("/v2/dashboard"), DRAWN)
    return page


def lead_on(page: Page) -> str:
    """Clicks on the link to our pages; returns the path that it leads to."""
    page.press("results and lineage")
    page.wait("location.pathname.startsWith('/parcel/') && document.readyState === 'complete'")
    return page.evaluate("location.pathname")


def test_a_click_leads_from_run_step_and_artifact_to_what_is_known_of_them(
    served: Served, run: dict[str, Any], own_page: Page
):
    # To the run by a click in their list: Prefect's script changes the page and its address.
    own_page.open(f"{served.url}/v2/runs", DRAWN)
    own_page.press("linked")
    own_page.wait(f"location.pathname.endsWith('/flow-run/{run['id']}')")
    assert lead_on(own_page) == f"/parcel/results/linked-{run['id'].replace('-', '')[-12:]}"
    assert "night =the first one" in own_page.text()
    of_run = {"flow_runs": {"id": {"any_": [run["id"]]}}}
    tasks = {row["name"]: row["id"] for row in served.ask("/task_runs/filter", of_run)}
    (name,) = [name for name in tasks if name.startswith("transfer vanilla chartqa")]
    own_page.open(f"{served.url}/v2/runs/task-run/{tasks[name]}", DRAWN)
    assert lead_on(own_page).startswith("/parcel/artifact/checkpoint-")
    assert own_page.evaluate("document.querySelector('h1').innerText") == name
    pages = {page["key"]: page["id"] for page in served.ask("/artifacts/filter", of_run)}
    key = next(key for key in pages if key.startswith("lineage-scores-"))
    for path in (f"artifact/{pages[key]}", f"key/{key}"):
        own_page.open(f"{served.url}/v2/artifacts/{path}", DRAWN)
        assert lead_on(own_page) == f"/parcel/artifact/{key.removeprefix('lineage-')}"


def test_the_name_of_a_run_says_what_differs_from_the_one_before(
    served: Served, run: dict[str, Any]
):
    words = ("name=linked", "transfers.chartqa.train.total_steps=6", "--until", "prepare")
    assert parcel(served.store, "run", SMALLEST, *words).returncode == 0
    names = [each["name"] for each in served.runs() if each["name"].startswith("linked")]
    assert names == ["linked", "linked, transfers.chartqa.train.total_steps: 4 → 6"]


def test_runs_are_found_by_tag_and_files_of_tables_and_figures_are_a_click_away(
    served: Served, run: dict[str, Any], own_page: Page, tmp_path: Path
):
    own_page.open(f"{served.url}/parcel/runs#find=tags:night", "!!document.querySelector('.tools')")
    shown = "[...document.querySelectorAll('table.data tr')].filter(row => !row.hidden).length"
    assert own_page.evaluate(shown) == 2  # With the head.
    own_page.press("csv")
    own_page.resize(1400, 2400)  # The links to the files are below the drawings.
    own_page.open(
        f"{served.url}/parcel/curves/linked/chartqa:test_human", "document.links.length > 3"
    )
    own_page.press("pdf")

    def files() -> list[Path]:
        return [path for path in tmp_path.iterdir() if path.suffix in (".csv", ".pdf")]

    wait_for(lambda: len(files()) == 2, 60)
    table, figure = sorted(files())[::-1]
    assert figure.read_bytes().startswith(b"%PDF")
    with table.open(newline="") as file:
        notes = {row["note"] for row in csv.DictReader(file)}
    assert "'=the first one" in notes  # A spreadsheet would compute it without the sign.
