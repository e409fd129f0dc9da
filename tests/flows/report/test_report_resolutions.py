"""Reports of two resolutions: of each its own budgets, seeds and reference."""

import csv
import dataclasses
import io
import json

import pytest

from flows.report.build import build_report
from flows.report.cells import Plan
from flows.report.render import comparisons_to_csv, render_report
from tests.flows.report.report_studies import CHANCE, PLAN, SEEDS, make, scores


def two_resolutions():
    """The report of `PLAN` at 224 px and, for two methods and one seed, of ChartQA at 448 px."""
    high = Plan(
        methods=("vanilla", "parcel"),
        benchmarks=("chartqa@448",),
        budgets=(1024, 64),
        seeds=SEEDS[:1],
        resolution=448,
    )
    plan = dataclasses.replace(PLAN, resolution=224, also=(high,))
    more = [
        make("chartqa@448", "vanilla", 1024, SEEDS[0], 80.0),
        make("chartqa@448", "parcel", 1024, SEEDS[0], 72.0),
        make("chartqa@448", "parcel", 64, SEEDS[0], 40.0),
    ]
    return build_report(plan, [*scores(), *more], {**CHANCE, "chartqa@448": 10.0})


def test_each_resolution_has_budgets_seeds_and_a_reference_of_its_own():
    report = two_resolutions()
    alone = build_report(PLAN, scores(), CHANCE)
    low, high = report.sections[:2], report.sections[2]
    assert {section.resolution for section in low} == {224}
    assert [s.cells for s in low] == [s.cells for s in alone.sections]
    assert (high.resolution, high.budgets, high.title) == (448, (1024, 64), "chartqa")
    cell = high.cell("parcel", 64)
    assert (cell.n, cell.expected, cell.retention) == (1, 1, 50.0)
    assert {a.resolution for a in report.aggregates} == {224}  # There is one row at 448 px.
    assert {c.resolution for c in high.comparisons} == {448}


def test_every_form_tells_the_resolution_and_only_where_there_are_several():
    report, alone = two_resolutions(), build_report(PLAN, scores(), CHANCE)
    text = render_report(report, "md")
    assert "## chartqa (relaxed_accuracy, 224 px)" in text
    assert "## chartqa (relaxed_accuracy, 448 px)" in text
    assert "## Methods and budgets compared (224 px)" in text
    rows = list(csv.DictReader(io.StringIO(render_report(report, "csv"))))
    assert {(r["benchmark"], r["resolution"]) for r in rows} == {
        ("chartqa", "224"),
        ("refcoco", "224"),
        ("chartqa@448", "448"),
    }
    # Means stand before the benchmarks of a resolution; there is one row at 448 px, so none there.
    _, *tables = render_report(report, "latex").split(r"\end{tabular}")
    assert [("1024" in table, "256" in table) for table in tables[:2]] == [
        (False, True),
        (True, False),
    ]
    compared = csv.DictReader(io.StringIO(comparisons_to_csv(report)))
    assert {row["resolution"] for row in compared} == {"224", "448"}
    for form in ("md", "csv", "json", "latex"):
        assert "px" not in render_report(alone, form)
    assert "resolution" not in comparisons_to_csv(alone)
    assert all(
        "resolution" not in c for c in json.loads(render_report(alone, "json"))["comparisons"]
    )


def test_a_score_of_no_resolution_is_refused():
    with pytest.raises(ValueError, match=r"scores .*got chartqa@336/parcel"):
        build_report(PLAN, [make("chartqa@336", "parcel", 64, SEEDS[0], 1.0)], CHANCE)
