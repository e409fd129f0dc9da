"""Tables of the pages in a browser, by mouse and keyboard; and the files that they download."""

import csv
import getpass
import io
import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from pyarrow import parquet
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from flows.lookup.runs import begin_run_record, end_run_record, record_name
from flows.pages.app import store_pages
from flows.pages.downloads import table_file
from flows.pages.run_results import study_of
from infra.prefect.server import PAGES
from infra.store.store import Store
from tests.effects.browser import Page, browsing
from tests.effects.product import wait_for

pytestmark = pytest.mark.slow

TIMES = {"minutes": "00:09:40", "seconds": "00:00:09", "hours": "02:00:00"}
"""Run -> time that it took; as texts, "9 min", "9 s" and "2 h", they would be in another order."""

SHOWN = """[...document.querySelectorAll('table.data')].at(%d).querySelectorAll('tr')"""
"""The rows of a table of the page."""


@pytest.fixture(scope="module")
def store(toy: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The toy study, with three runs that failed after different times."""
    folder = tmp_path_factory.mktemp("tables") / "store"
    shutil.copytree(toy.uri, folder)
    store = Store(folder)
    for name, took in TIMES.items():
        config = {"name": name, "methods": [], "transfers": {}}
        given = f"parcel run {'long/' * 30}{name}.yaml"
        said = {"tags": ("night", f"of-{name}"), "note": f"=1+1 of {name}"}
        begin_run_record(store, config, name, artifacts=[], given=given, **said)
        end_run_record(store, config, name, results=None, artifacts=[], failed=["a: no"])
        path = folder / "runs" / f"{record_name(name, name)}.json"
        record = json.loads(path.read_text())
        times = {"began": "2026-11-29T00:00:00+00:00", "finished": f"2026-11-29T{took}+00:00"}
        path.write_text(json.dumps({**record, **times}))
    # Records of earlier versions do not say when their run began.
    (path,) = (folder / "runs").glob("toy-*.json")
    record = json.loads(path.read_text())
    del record["began"]
    path.write_text(json.dumps(record))
    return store


@pytest.fixture(scope="module")
def address(store: Store) -> Iterator[str]:
    """The address of a server of the store's pages."""
    app = Starlette(routes=[Mount(PAGES, store_pages(store.uri))])
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_for(lambda: server.started, 60)
    (listening,) = server.servers[0].sockets
    yield f"http://127.0.0.1:{listening.getsockname()[1]}{PAGES}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("profile")) as made:
        made.resize(1400, 1000)
        yield made


def rows(page: Page, column: int, table: int = 0) -> list[str]:
    """The texts in a column of the rows that are shown, below the heads."""
    shown = f"[...{SHOWN % table}].filter(row => !row.hidden).slice(1)"
    return page.evaluate(
        f"{shown}.map(row => row.cells[{column}].innerText.split('\\n')[0].trim())"
    )


def open_anew(page: Page, address: str) -> None:
    """Opens a page that may differ from the present one by its fragment alone."""
    page.open("data:text/html,blank", "true")
    page.open(address, "!!document.querySelector('.tools')")


def test_a_click_on_a_head_sorts_by_number_and_the_link_keeps_it(page: Page, address: str):
    open_anew(page, f"{address}/runs")
    assert rows(page, 1)[-3:] == ["hours", "minutes", "seconds"]  # By when they ended.
    page.press("took")
    page.wait("location.hash === '#sort.0=3-'")
    # The toy study did not note when it began, and comes last both ways.
    assert rows(page, 1) == ["hours", "minutes", "seconds", "toy"]
    page.press("took")
    page.wait("document.querySelector('th[aria-sort]').ariaSort === 'ascending'")
    assert rows(page, 1) == ["seconds", "minutes", "hours", "toy"]
    link = page.evaluate("location.href")
    open_anew(page, link)
    assert rows(page, 1) == ["seconds", "minutes", "hours", "toy"]
    page.press("took")
    page.wait("location.hash === '#' || location.hash === ''")
    assert rows(page, 1)[0] == "toy"


def test_a_search_and_hidden_columns_are_in_the_link(page: Page, address: str):
    is_hidden = "document.querySelector('table.data').rows[1].cells[8].hidden"
    open_anew(page, f"{address}/runs")
    assert not page.evaluate(is_hidden)
    page.evaluate("document.querySelector('.tools input[type=search]').focus()")
    page.type("outcome:failed minutes.yaml")
    page.wait("document.querySelector('.tools output').innerText === '1 of 4 rows'")
    assert rows(page, 1) == ["minutes"]
    page.evaluate("document.querySelector('.tools details').open = true")
    page.evaluate("document.querySelector('.tools input[name=command]').click()")
    assert page.evaluate(is_hidden)
    link = page.evaluate("location.href")
    assert link.endswith("#find=outcome%3Afailed+minutes.yaml&hide=command")
    open_anew(page, link)
    assert rows(page, 1) == ["minutes"]
    assert page.evaluate(is_hidden)
    assert page.evaluate("document.querySelector('.tools input[type=search]').value") == (
        "outcome:failed minutes.yaml"
    )


def test_runs_are_found_by_tag_and_user(page: Page, address: str):
    open_anew(page, f"{address}/runs#find=tags:of-minutes+who:{getpass.getuser()}")
    assert rows(page, 1) == ["minutes"]
    # What the search takes is not cut off: the same letters, side by side, are no wider than it.
    widths = page.evaluate("""(() => {
      const box = document.querySelector('.tools input[type=search]');
      const pen = document.createElement('canvas').getContext('2d');
      pen.font = getComputedStyle(box).font;
      return [pen.measureText(box.placeholder).width, box.clientWidth - 18];
    })()""")
    assert widths[0] < widths[1]


def test_no_text_of_a_csv_file_becomes_a_formula(store: Store):
    client = TestClient(store_pages(store.uri))
    texts = [*csv.DictReader(io.StringIO(client.get("/runs?as=csv").text))]
    assert "'=1+1 of hours" in {row["note"] for row in texts}
    table = parquet.read_table(io.BytesIO(client.get("/runs?as=parquet").content)).to_pylist()
    assert "=1+1 of hours" in {row["note"] for row in table}
    answers = ("@A1", "+cmd()", "-2+3", "\t=1", "-5", "+0.5", "5 - 3", "")
    made = csv.DictReader(
        io.StringIO(table_file([{"a": text} for text in answers], "csv").decode())
    )
    assert [row["a"] for row in made] == [
        "'@A1", "'+cmd()", "'-2+3", "'\t=1", "-5", "+0.5", "5 - 3", "",
    ]  # fmt: skip


def test_rows_are_found_by_number_where_a_table_has_the_column(page: Page, address: str):
    open_anew(page, f"{address}/results/toy#find=score@64>60&hide=seeds")
    tables = page.evaluate("[...document.querySelectorAll('table.data')].map(t => t.innerText)")
    (scores,) = [n for n, text in enumerate(tables) if "score @16" in text and "mean" not in text][
        :1
    ]
    assert rows(page, 0, scores) == ["parcel", "mqt"]  # vanilla has 50.
    assert rows(page, 0, scores + 1) == ["vanilla", "parcel", "mqt"]
    assert "seeds" not in tables[scores + 1]
    assert "pretrainings" in tables[scores + 1]


def test_a_click_downloads_the_table(page: Page, address: str, tmp_path: Path, store: Store):
    page.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    open_anew(page, f"{address}/results/toy")
    page.evaluate("[...document.querySelectorAll('a[download]')][0].click()")
    wait_for(lambda: [*tmp_path.glob("*.csv")], 60)
    (path,) = tmp_path.glob("*.csv")
    rows = [*csv.DictReader(io.StringIO(path.read_text()))]
    cell = study_of(store, "toy").section("colors").cell("mqt", 64)
    (row,) = [
        r for r in rows if (r["benchmark"], r["method"], r["budget"]) == ("colors", "mqt", "64")
    ]
    assert float(row["mean"]) == pytest.approx(cell.mean, abs=1e-4)


def test_files_of_tables_and_figures_are_what_they_are_called(store: Store):
    client = TestClient(store_pages(store.uri))
    run = study_of(store, "toy").run
    compare = f"/compare?side={run}/*/parcel&side={run}/*/mqt"
    items = "/items/toy/colors?a=parcel@16&b=mqt@16&show=only-b"
    for path, num in ((f"/results/{run}", 10), ("/runs", 4), (compare, 4), (items, None)):
        joint = "&" if "?" in path else "?"
        read = {form: client.get(f"{path}{joint}as={form}") for form in ("csv", "tex", "parquet")}
        for form, answer in read.items():
            assert f'.{form}"' in answer.headers["content-disposition"]
        texts = [*csv.DictReader(io.StringIO(read["csv"].text))]
        table = parquet.read_table(io.BytesIO(read["parquet"].content))
        assert table.column_names == [*texts[0]]
        assert len(texts) == table.num_rows
        assert num is None or len(texts) == num, path
        assert r"\bottomrule" in read["tex"].text
    # Of items each seed's answer, and the text of the question as it was.
    (first, *_) = table.to_pylist()
    assert first["parcel@16 score"] < 0.5 < first["mqt@16 score"]
    assert first["accepted"]
    answers = [first[f"parcel@16, seed {seed}"] for seed in (11, 23, 47)]
    assert answers.count("<b>purple</b>") >= 2
    results = parquet.read_table(
        io.BytesIO(client.get(f"/results/{run}?as=parquet").content)
    ).to_pylist()
    assert {type(row["mean"]) for row in results} == {float}
    assert {row["benchmark"] for row in results} == {"colors", "shapes"}
    for form, begins in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        answer = client.get(f"/curves/{run}/colors?of=curves&as={form}")
        assert answer.content.startswith(begins)
        for of in ("scores", "retention", "curves", "pareto"):
            answer = client.get(f"/results/{run}?of={of}&as={form}")
            assert answer.content.startswith(begins)
    assert re.search('filename="results-toy-.*-pareto.pdf"', answer.headers["content-disposition"])


def test_pages_read_without_the_script(page: Page, address: str):
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    page.open(f"{address}/runs", "true")
    assert rows(page, 1)[0] == "toy"
    assert page.evaluate("!document.querySelector('.tools')")
    page.send("Emulation.setScriptExecutionDisabled", value=False)


def test_no_page_is_wider_than_a_phone_and_drawings_keep_their_size(
    page: Page, address: str, store: Store
):
    run = study_of(store, "toy").run
    checkpoint, corpus = (next(store.artifacts(kind)).key for kind in ("checkpoint", "corpus"))
    paths = (
        "/", "/runs", f"/runs?find={checkpoint[:12]}", f"/results/{run}", f"/curves/{run}/colors",
        "/items/toy/colors?a=parcel@16&b=mqt@16", "/item/toy/shapes?id=segment/001",
        f"/compare?side={run}/colors/parcel/16&side={run}/colors/mqt/16",
        f"/compare?side={run}&side=toy", f"/artifact/{checkpoint}", f"/artifact/{corpus}",
        f"/diff?a={run}/colors/parcel/16&b={run}/colors/mqt/16", f"/seen/{run}?id=colors/003",
        f"/cell/{run}/colors/parcel/16",
    )  # fmt: skip
    page.resize(400, 800)
    outside = """[...document.querySelectorAll('body *')].filter(each =>
        each.getBoundingClientRect().right > 401 && !each.closest('.wide, .drawing, pre')
    ).map(each => each.outerHTML.slice(0, 80))"""
    for path in paths:
        page.open(f"{address}{path}", "true")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, path
        assert page.evaluate(outside) == [], path
    # The last one, a cell: its history scrolls in its own box, in letters of full size.
    box = "document.querySelector('.drawing')"
    assert page.evaluate(f"{box}.scrollWidth > {box}.clientWidth")
    assert page.evaluate(f"{box}.querySelector('text').getBoundingClientRect().height") > 11
    page.resize(1400, 1000)
