"""Costs beside scores: in the files, and in the plot of the Pareto front."""

import csv
import dataclasses
import io
import json

from flows.report.build import build
from flows.report.cells import Cost
from flows.report.pareto import front, pareto_png
from flows.report.render import render
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
REPORT = build(dataclasses.replace(PLAN, costs=COSTS), scores(), CHANCE)


def test_the_front_is_what_nothing_beats_at_the_same_cost_or_less():
    points = [(16, 50.0), (64, 60.0), (64, 55.0), (256, 60.0), (16, 40.0), (1024, 61.0)]
    assert front(points) == [(16, 50.0), (64, 60.0), (1024, 61.0)]
    assert front([]) == []


def test_files_hold_the_cost_of_every_cell():
    lines = csv.DictReader(io.StringIO(render(REPORT, "csv")))
    found = {(r["benchmark"], r["method"], r["budget"]): r for r in lines}
    line = found["refcoco", "parcel", "64"]
    assert (line["tokens"], line["tflops"], line["kv_mb"]) == ("1024", "0.001024", "9.14286")
    cells = json.loads(render(REPORT, "json"))["benchmarks"][1]["cells"]
    cell = next(c for c in cells if (c["method"], c["budget"]) == ("parcel", 64))
    assert (cell["tokens"], cell["tflops"]) == (1024, 64 * 16 / 1e6)
    plain = json.loads(render(build(PLAN, scores(), CHANCE), "json"))["benchmarks"][0]["cells"][0]
    assert plain["tokens"] is None


def test_the_plot_is_a_png_with_the_same_bytes_and_needs_no_score():
    first = pareto_png(REPORT)
    assert first.startswith(b"\x89PNG")
    assert pareto_png(REPORT) == first
    assert pareto_png(build(PLAN, [], {})).startswith(b"\x89PNG")
