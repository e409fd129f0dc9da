"""The rules that `test_instruction_sets` holds the demo to, on made-up tables."""

import dataclasses
import json
import re

from scipy import stats

from flows.report.build import build_report
from flows.report.cells import Plan
from flows.report.render import render_report
from tests.e2e.margins import apart, difference_of_methods, out_of_range, too_close_to_chance
from tests.flows.report.report_studies import make

PLAN = Plan(methods=("vanilla", "m3"), benchmarks=("chartqa",), budgets=(64, 256), seeds=(1, 2))


def table(**means: float) -> str:
    """The JSON of a study of 200 pictures, as far above as below each mean: an error of 8."""
    scores = []
    for method, budget in (("vanilla", 256), ("m3", 64), ("m3", 256)):
        mean = means.get(f"{method}{budget}")
        if mean is None:
            continue
        off = 8 * 199**0.5 / (stats.t.isf(stats.norm.sf(3), 199) / 3)
        items = {f"{i:03d}": (mean + off if i % 2 else mean - off,) for i in range(200)}
        for seed in PLAN.seeds:
            score = make("chartqa", method, budget, seed, mean)
            scores.append(dataclasses.replace(score, items=items))
    return render_report(build_report(PLAN, scores, {"chartqa": 20.0}), "json")


def test_cells_three_errors_above_chance_hold_the_rule():
    assert too_close_to_chance(table(vanilla256=60.0, m364=44.0, m3256=50.0)) == []


def test_cells_too_close_to_chance_below_it_or_missing_are_named():
    found = too_close_to_chance(table(vanilla256=43.5, m364=3.0))
    assert [re.sub(r"(\.\d)\d+", r"\1", line) for line in found] == [
        "chartqa/vanilla/256: 43.5 of chance 20.0, error 8.0",
        "chartqa/m3/64: 3.0 of chance 20.0, error 8.0",
        "chartqa/m3/256: None of chance 20.0, error None",
    ]


def test_cells_whose_items_are_unknown_are_named_too():
    value = json.loads(table(vanilla256=60.0, m364=60.0, m3256=60.0))
    value["benchmarks"][0]["cells"][0]["error"] = None
    assert len(too_close_to_chance(json.dumps(value))) == 1


def test_cells_near_chance_or_near_the_top_are_named():
    assert out_of_range(table(vanilla256=95.0, m364=30.0, m3256=60.0)) == []
    assert out_of_range(table(vanilla256=95.1, m364=29.9, m3256=60.0)) == [
        "('chartqa', 'vanilla', 256): 95.1 of chance 20.0",
        "('chartqa', 'm3', 64): 29.9 of chance 20.0",
    ]


def test_cells_that_differ_between_processors_or_are_missing_on_one_are_named():
    one = table(vanilla256=60.0, m364=44.0, m3256=50.0)
    assert apart([one, table(vanilla256=63.0, m364=41.5, m3256=50.0), one]) == []
    assert apart([one, table(vanilla256=63.1, m364=44.0), one]) == [
        "('chartqa', 'm3', 256): [50.0, 50.0]",
        "('chartqa', 'vanilla', 256): [60.0, 63.1, 60.0]",
    ]


def test_the_difference_of_methods_is_that_at_one_budget():
    assert difference_of_methods(table(vanilla256=60.0, m364=20.0, m3256=52.5), 256) == 7.5
