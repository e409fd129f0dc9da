"""Columns of the results are declared once: every form has them; the JSON gives them back."""

import csv
import io
import json

import pytest

from flows.report import result_columns
from flows.report.json_file import read_json
from flows.report.layout import report_blocks
from flows.report.render import FORMATS, render_report
from flows.report.result_columns import (
    AGGREGATE_COLUMNS,
    CELL_COLUMNS,
    SPREADS,
    CellRow,
    ResultColumn,
)
from tests.flows.report.report_studies import rich_report

WIDTH = ResultColumn[CellRow](
    name="width",
    meaning="width of the interval",
    value=lambda row: row.cell.high and row.cell.low and row.cell.high - row.cell.low,
    heading="width @{}",
    grid=SPREADS,
    latex_heading="Width",
)


def test_a_column_declared_once_stands_in_every_form(monkeypatch: pytest.MonkeyPatch):
    report = rich_report()
    before = {form: render_report(report, form) for form in FORMATS}
    monkeypatch.setattr(result_columns, "CELL_COLUMNS", (*CELL_COLUMNS, WIDTH))
    after = {form: render_report(report, form) for form in FORMATS}
    section = report.sections[0]
    cell = section.cell("parcel", 64)
    assert cell.low is not None
    assert cell.high is not None
    width = cell.high - cell.low

    (line,) = [
        row
        for row in csv.DictReader(io.StringIO(after["csv"]))
        if (row["benchmark"], row["method"], row["budget"]) == ("chartqa", "parcel", "64")
    ]
    assert line["width"] == f"{width:.4f}"
    entry = json.loads(after["json"])["benchmarks"][0]["cells"][2]
    assert (entry["method"], entry["budget"], entry["width"]) == ("parcel", 64, round(width, 6))
    assert "| width @256 | width @64 |" in after["md"]
    assert f" | {width:.1f} | " in after["md"]
    assert r"\multicolumn{2}{c}{Width}" in after["latex"]
    assert f" & {width:.1f} \\\\\n" in after["latex"]

    # The other columns stay as they were.
    names = [column.name for column in CELL_COLUMNS if not column.is_optional]
    rows = csv.DictReader(io.StringIO(after["csv"]))
    assert [[row[name] for name in names] for row in rows] == [
        [row[name] for name in names] for row in csv.DictReader(io.StringIO(before["csv"]))
    ]
    assert "width" not in before["md"] + before["csv"] + before["json"]


def test_every_column_says_what_it_is_in_one_phrase():
    for columns in (CELL_COLUMNS, AGGREGATE_COLUMNS):
        names = [column.name for column in columns]
        assert len(set(names)) == len(names)
        for column in columns:
            assert column.meaning, column.name
            assert not column.meaning.endswith("."), column.name


@pytest.mark.parametrize("form", FORMATS)
def test_a_report_read_back_is_written_as_before(form: str):
    report = rich_report()
    assert any(section.seen for section in report.sections)
    read = read_json(render_report(report, "json"))
    if form == "csv":  # Its scores have four decimals, and the JSON keeps more.
        lines = [list(csv.DictReader(io.StringIO(render_report(r, form)))) for r in (read, report)]
        for back, first in zip(*lines, strict=True):
            for name, text in first.items():
                assert back[name] == text or float(back[name]) == pytest.approx(
                    float(text), abs=2e-4
                )
    else:
        assert render_report(read, form) == render_report(report, form)
    assert report_blocks(read)[-1].title == report_blocks(report)[-1].title


def test_a_file_of_an_earlier_version_lacks_fields_and_is_read():
    value = json.loads(render_report(rich_report(), "json"))
    for section in value["benchmarks"]:
        del section["comparisons"], section["seen"], section["items"]
        for cell in section["cells"]:
            for name in ("low", "high", "error", "unseen", "accepted", "tokens", "tflops", "kv_mb"):
                del cell[name]
    del value["comparisons"], value["notes"], value["num_pretrainings"]
    text = render_report(read_json(json.dumps(value)), "md")
    assert "| parcel | – | – | 44.5 | 37.0 |" in text
    assert "†" not in text.partition("Scores are")[0]
