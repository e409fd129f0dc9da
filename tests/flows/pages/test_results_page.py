"""The page of a run's results: it shows what the Markdown shows, column by column."""

import getpass
import html
import re
from pathlib import Path

import pytest

from flows.lookup.runs import begin_run_record, end_run_record, find_run
from flows.pages.page import Page, address
from flows.pages.site import Site
from flows.report import result_columns
from flows.report.render import render_report
from flows.report.result_columns import CELL_COLUMNS, SPREADS, CellRow, ResultColumn
from infra.store.store import Store
from tests.flows.pages.studies import RUN, commit
from tests.flows.report.report_studies import rich_report


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with a run whose results artifact holds `rich_report`."""
    store = Store(tmp_path / "store")
    report = rich_report()
    files = {f"results.{form}": render_report(report, form) for form in ("md", "json")}
    results = commit(store, "results", "results", files)
    config = {"name": "rich", "methods": ["vanilla"], "transfers": {}}
    end_run_record(store, config, RUN, results=results.key, artifacts=[results.key], failed=())
    return store


def results_page(store: Store) -> str:
    site = Site(store, lambda page: "/".join((page.kind, *page.parts)))
    return site.html(Page("results", ("rich",)))


def plain_text(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def test_the_page_shows_every_row_and_note_of_the_markdown(store: Store):
    (artifact,) = store.artifacts("results")
    shown = plain_text(results_page(store))
    markdown = (artifact.path / "results.md").read_text(encoding="utf-8")
    lines = [line for line in markdown.splitlines() if line and ":--" not in line]
    for line in lines:
        # The best score of a column is bold here, the second best in italics.
        plain = re.sub(r"(\*\*?)(\S[^|*]*?)\1", r"\2", line)
        words = re.sub(r"^(- |#+ )", "", plain).replace(" | ", " ").strip("| ")
        assert " ".join(words.split()) in shown, line
    assert re.search(r"<strong>.*42\.0 ± 3\.5 †.*</strong>", results_page(store))
    # Among them are margins, differences of each benchmark, and scores without seen items.
    for heading in ("over chance @64", "difference", "without 1 of 4 items"):
        assert any(heading in line for line in lines), heading


def test_a_score_leads_to_the_page_of_its_cell(store: Store):
    text = results_page(store)
    (row,) = re.findall(r'href="(cell/[^"]*/chartqa@448/parcel/64)"', text)
    run = row.split("/")[1]
    assert run.startswith("rich-")
    assert f'href="cell/{run}/chartqa/m3/256"' not in text  # It has no score.
    assert f'href="items/{run}/chartqa@448"' in text


def test_a_column_declared_once_is_on_the_page(store: Store, monkeypatch: pytest.MonkeyPatch):
    assert "width @64" not in plain_text(results_page(store))
    column = ResultColumn[CellRow](
        name="width",
        meaning="width of the interval",
        value=lambda row: row.cell.high and row.cell.low and row.cell.high - row.cell.low,
        heading="width @{}",
        grid=SPREADS,
    )
    monkeypatch.setattr(result_columns, "CELL_COLUMNS", (*CELL_COLUMNS, column))
    cell = rich_report().sections[0].cell("parcel", 64)
    assert cell.low is not None
    assert cell.high is not None
    shown = plain_text(results_page(store))
    assert "over chance @64 width @256 width @64 seeds pretrainings items pictures vanilla" in shown
    assert f"{cell.high - cell.low:.1f} 2–3 2 4 3 m3" in shown  # Then seeds to pictures.


def test_the_page_says_what_was_asked_for_and_what_is_not_as_in_the_run_before(store: Store):
    first = find_run(store, "rich")
    config = {**first["config"], "stage1": {"peak_lr": 0.002}}
    earlier = {first["run"]: first}
    said = {"given": "parcel run rich.yaml", "tags": ["night"], "note": "for the talk"}
    begin_run_record(store, config, "later", artifacts=[], earlier=earlier, **said)
    results = first["results"]
    end_run_record(store, config, "later", results=results, artifacts=[results], failed=["a: no"])
    shown = plain_text(results_page(store))
    assert "With holes, finished" in shown
    assert f"night for the talk Asked for by {getpass.getuser()}, parcel run rich.yaml" in shown
    assert "Not as in the run before: stage1.peak_lr None → 0.002" in shown
    assert "parcel certify rich-later --key FILE" in shown


def test_many_cells_are_on_several_pages_and_each_benchmark_on_one(store: Store):
    def benchmarks(page: str) -> list[str]:
        return re.findall(r'<h2 id="([^"]*)"', page)

    first = results_page(store)
    whole = benchmarks(first)
    site = Site(store, address, max_cells=1)
    pages = [site.html(Page("results", ("rich",), (("page", str(n)),))) for n in range(1, 5)]
    # What is over all benchmarks comes first; each page has the way to every benchmark.
    assert [benchmarks(page) for page in pages] == [[name] for name in whole]
    over_all = [page.count("<h2>Over benchmarks") for page in (first, *pages)]
    assert over_all == [over_all[0], over_all[0], 0, 0, 0]
    assert over_all[0]
    assert all("Score against budget" in page for page in pages)
    run = find_run(store, "rich")["run"]
    for number, page in enumerate(pages, start=1):
        assert f'href="/parcel/results/{run}#{whole[0]}"' in page
        assert f'href="/parcel/results/{run}?page=4#{whole[-1]}"' in page
        assert f"{number} of 4" in page
    assert site.html(Page("results", ("rich",), (("page", "9"),))).count("<h2 id=") == 1
