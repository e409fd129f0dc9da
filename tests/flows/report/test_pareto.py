"""Costs beside scores: in the files, and in the plot of the Pareto front."""

import csv
import dataclasses
import io
import json

import pytest

from flows.report.build import build_report
from flows.report.cells import Cost, Report
from flows.report.pareto import MEASURED, draw_pareto, pareto_front
from flows.report.render import latency_to_csv, render_report
from tests.flows.report.report_studies import CHANCE, PLAN, scores

COSTS = tuple(
    Cost(
        benchmarks=(benchmark,),
        method=method,
        budget=budget,
        num_images=num_images,
        tflops=budget * num_images / 1e6,
        kv_mb=budget / 7,
    )
    for benchmark, num_images in (("chartqa", 1), ("refcoco", 16))
    for method in PLAN.methods
    for budget in PLAN.budgets
)
REPORT = build_report(dataclasses.replace(PLAN, costs=COSTS), scores(), CHANCE)


def test_the_front_is_what_nothing_beats_at_the_same_cost_or_less():
    points = [(16, 50.0), (64, 60.0), (64, 55.0), (256, 60.0), (16, 40.0), (1024, 61.0)]
    assert pareto_front(points) == [(16, 50.0), (64, 60.0), (1024, 61.0)]
    assert pareto_front([]) == []


def test_files_hold_the_cost_of_every_cell():
    lines = csv.DictReader(io.StringIO(render_report(REPORT, "csv")))
    found = {(r["benchmark"], r["method"], r["budget"]): r for r in lines}
    line = found["refcoco", "parcel", "64"]
    assert (line["tokens"], line["tflops"], line["kv_mb"]) == ("1024", "0.001024", "9.14286")
    cells = json.loads(render_report(REPORT, "json"))["benchmarks"][1]["cells"]
    cell = next(c for c in cells if (c["method"], c["budget"]) == ("parcel", 64))
    assert (cell["tokens"], cell["tflops"]) == (1024, 64 * 16 / 1e6)
    plain = json.loads(render_report(build_report(PLAN, scores(), CHANCE), "json"))["benchmarks"][
        0
    ]["cells"][0]
    assert plain["tokens"] is None


@pytest.mark.slow
def test_the_plot_is_a_png_with_the_same_bytes_and_needs_no_score():
    first = draw_pareto(REPORT)
    assert first.startswith(b"\x89PNG")
    assert draw_pareto(REPORT) == first
    assert draw_pareto(build_report(PLAN, [], {})).startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_time_of_an_answer_is_the_median_over_seeds_and_draws_a_plot_of_its_own():
    def timed(by: float) -> Report:
        made = [
            dataclasses.replace(s, answer_ms=by * s.budget + s.seed / 1e5)
            for s in scores()
            if s.method != "m3"
        ]
        return build_report(dataclasses.replace(PLAN, costs=COSTS), made, CHANCE)

    report = timed(2.0)
    lines = list(csv.DictReader(io.StringIO(latency_to_csv(report))))
    found = {(r["benchmark"], r["method"], r["budget"]): r["answer_ms"] for r in lines}
    assert found["chartqa", "parcel", "256"] == "512.4821"  # Of seeds 48213, 10007 and 99991.
    assert found["chartqa", "parcel", "64"] == "128.7410"  # One of them is missing.
    assert not [key for key in found if key[1] == "m3"]
    assert latency_to_csv(REPORT).count("\n") == 1
    assert draw_pareto(report) == draw_pareto(timed(3.0))
    measured = [draw_pareto(r, of=MEASURED) for r in (report, timed(3.0), REPORT)]
    assert len(set(measured)) == 3
