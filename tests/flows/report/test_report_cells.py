"""Cells: means, spread, retention and what is missing, against numbers worked out by hand."""

import dataclasses
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.report.build import build_report
from flows.report.cells import Cell, CellKey, Plan, Score
from flows.report.json_file import read_json, to_json
from flows.report.markdown import to_markdown
from flows.report.spread import summarize_scores, t_interval
from tests.flows.report.report_studies import CHANCE, PLAN, SEEDS, make, scores

REPORT = build_report(PLAN, scores(), CHANCE)
CHARTQA, REFCOCO = REPORT.sections


def test_mean_deviation_and_interval_are_those_worked_out_by_hand():
    cell = CHARTQA.cell("parcel", 256)  # 57, 60, 54: deviations 0, 3, -3
    assert (cell.mean, cell.std, cell.n, cell.expected) == (57.0, 3.0, 3, 3)
    assert cell.retention == pytest.approx(95.0)  # 57 of 60
    # Near Student's interval of three seeds, but never outside 0-100.
    half = 4.302652729749 * 3 / math.sqrt(3)
    assert (cell.low, cell.high) == pytest.approx((57 - half, 57 + half), abs=0.2)
    assert (cell.chance, cell.metric, cell.complete) == (12.5, "relaxed_accuracy", True)
    assert cell.artifacts == tuple(f"predictions/chartqa-parcel-256-{s}" for s in SEEDS)


def test_retention_pairs_the_seeds_that_both_have():
    cell = CHARTQA.cell("parcel", 64)  # 48 and 51 of the first and last seed; vanilla 60 and 58
    assert (cell.n, cell.expected, cell.complete) == (2, 3, False)
    assert cell.mean == 49.5
    assert cell.retention == pytest.approx(100 * 99 / 118)


def test_one_seed_has_no_spread_and_no_interval():
    cell = CHARTQA.cell("m3", 64)
    assert (cell.mean, cell.std, cell.low, cell.high, cell.n) == (45.0, None, None, None, 1)
    assert cell.retention == pytest.approx(75.0)


def test_missing_cell_is_none_never_zero():
    cell = CHARTQA.cell("m3", 256)
    assert (cell.mean, cell.std, cell.retention, cell.low) == (None, None, None, None)
    assert (cell.n, cell.expected, cell.artifacts) == (0, 3, ())


def test_reference_runs_at_its_full_budget_only():
    assert CHARTQA.cell("vanilla", 64).expected == 0
    assert CHARTQA.cell("vanilla", 256).retention == pytest.approx(100.0)


def test_aggregate_is_the_unweighted_mean_of_retentions_and_needs_all_rows():
    found = {(a.method, a.budget): a for a in REPORT.aggregates}
    assert ("vanilla", 64) not in found
    parcel = found["parcel", 256]  # 95 and 126/135
    assert parcel.retention == pytest.approx((95 + 100 * 126 / 135) / 2)
    assert (parcel.rows, parcel.expected, parcel.mean) == (2, 2, 49.5)
    partial = found["m3", 256]
    assert (partial.rows, partial.expected, partial.mean, partial.retention) == (1, 2, None, None)
    assert partial.partial == pytest.approx(60.0)
    assert found["parcel", 64].rows == 1  # A cell short of a seed is no row.


def test_groups_are_averaged_apart():
    plan = dataclasses.replace(
        PLAN,
        benchmarks=("chartqa", "refcoco", "clips"),
        groups={
            "suite": ("chartqa", "refcoco"),
            "charts": ("chartqa",),
            "pictures": ("chartqa", "refcoco"),
        },
        group_sizes={"suite": 27, "charts": 2, "pictures": 22},
        blocks={"chartqa": "charts"},
    )
    own = [*scores(), *(make("clips", "parcel", 256, seed, 12.0) for seed in SEEDS)]
    report = build_report(plan, own, CHANCE)
    found = {(a.name, a.method, a.budget): a for a in report.aggregates}
    suite = found["suite", "parcel", 256]
    assert (suite.expected, suite.of, suite.mean) == (2, 27, 49.5)
    # Means over both, seed by seed: 48.5, 50 and 50.
    assert suite.std == pytest.approx(statistics.stdev([48.5, 50.0, 50.0]))
    assert found["all", "parcel", 256].mean == pytest.approx(37.0)
    # A group of one benchmark, or of the same ones as a group before it, has no row.
    assert {name for name, _, _ in found} == {"suite", "all"}
    assert [s.group for s in report.sections] == ["charts", "", ""]


def test_a_benchmark_left_out_of_means_has_a_table_and_no_part_in_anything_over_benchmarks():
    plan = dataclasses.replace(
        PLAN, benchmarks=("chartqa", "refcoco", "clips"), left_out=("clips",)
    )
    own = [
        *scores(),
        *(make("clips", method, 256, seed, 12.0) for method in PLAN.methods for seed in SEEDS),
    ]
    report, without = build_report(plan, own, CHANCE), build_report(PLAN, scores(), CHANCE)
    assert report.aggregates == without.aggregates
    assert report.comparisons == without.comparisons
    assert report.sections[2].cell("parcel", 256).mean == 12.0
    text = to_markdown(report)
    assert "clips counts in no mean" in text
    assert to_markdown(read_json(to_json(report))) == text


def test_the_best_and_the_second_best_are_those_that_a_table_shows_and_the_reference_is_apart():
    plan = dataclasses.replace(PLAN, methods=("vanilla", "parcel", "m3", "mqt", "own"))
    means = {"vanilla": 90.0, "parcel": 60.04, "m3": 59.96, "mqt": 50.0, "own": 49.9}
    own = [make("chartqa", m, 256, seed, mean) for m, mean in means.items() for seed in SEEDS]
    section, other = build_report(plan, own, {}).sections
    places = {method: section.place(section.cell(method, 256)) for method in plan.methods}
    assert places == {"vanilla": 0, "parcel": 1, "m3": 1, "mqt": 2, "own": 0}
    assert not any(other.place(cell) for cell in other.cells)
    # One that lacks a seed has no place, and nobody is the best of one.
    short = [s for s in own if s.method in ("vanilla", "parcel", "m3")][:-1]
    (section, _) = build_report(plan, short, {}).sections
    assert not any(section.place(cell) for cell in section.cells)


def test_methods_of_one_budget_are_planned_there_only():
    plan = Plan(**{**vars(PLAN), "budgets_of": {"m3": (64,)}})
    kept = [s for s in scores() if s.method != "m3" or s.budget == 64]
    cell = build_report(plan, kept, CHANCE).sections[1].cell("m3", 256)
    assert cell.expected == 0


def test_retention_is_missing_without_a_reference_or_when_it_scores_zero():
    without = [s for s in scores() if s.method != "vanilla"]
    assert build_report(PLAN, without, {}).sections[0].cell("parcel", 256).retention is None
    zero = [make("chartqa", "vanilla", 256, s, 0.0) for s in SEEDS]
    section = build_report(PLAN, [*without, *zero], {}).sections[0]
    assert section.cell("parcel", 256).retention is None
    assert section.cell("vanilla", 256).mean == 0.0


def with_items(error: float) -> list[Score]:
    """The scores of the study, each of 200 pictures whose mean has about this error."""
    off = error * 199**0.5
    return [
        dataclasses.replace(
            s, items={f"{i:03d}": (s.score + (off if i % 2 else -off),) for i in range(200)}
        )
        for s in scores()
    ]


def test_margin_over_chance_is_held_against_three_standard_errors():
    section = build_report(PLAN, with_items(6.0), CHANCE).sections[1]  # refcoco, chance 20
    cell = section.cell("parcel", 64)  # 36 of all seeds
    assert cell.error == pytest.approx(6.0, rel=0.02)
    assert (cell.margin, cell.above_chance) == (pytest.approx(16.0), False)
    near = build_report(PLAN, with_items(5.2), CHANCE).sections[1].cell("parcel", 64)
    assert near.above_chance is True
    assert section.cell("m3", 64).above_chance is False  # 18, below chance
    assert REFCOCO.cell("parcel", 64).above_chance is None  # Above, but nobody knows how surely.
    assert REFCOCO.cell("m3", 64).above_chance is False


def test_guesses_that_find_the_same_items_easy_make_the_margin_surer():
    guess = {"refcoco": {f"{i:03d}": (60.0 if i % 2 else 0.0,) for i in range(200)}}
    cell = build_report(PLAN, with_items(3.0), CHANCE, guess).sections[1].cell("parcel", 64)
    alone = build_report(PLAN, with_items(3.0), CHANCE).sections[1].cell("parcel", 64)
    assert cell.error < 0.5 * alone.error


def test_there_is_no_retention_of_a_reference_that_is_not_above_chance():
    """The reference's seeds are 2 apart on chartqa and 5 on refcoco, 47.5 and 25 above chance."""
    chartqa, refcoco = build_report(PLAN, with_items(1.0), CHANCE).sections
    assert chartqa.cell("vanilla", 256).above_chance is True
    assert chartqa.cell("parcel", 256).retention == pytest.approx(95.0)
    assert refcoco.cell("vanilla", 256).above_chance is False
    assert {c.retention for c in refcoco.cells} == {None}
    assert refcoco.cell("parcel", 64).mean == 36.0
    found = {
        (a.method, a.budget): a for a in build_report(PLAN, with_items(1.0), CHANCE).aggregates
    }["parcel", 256]
    assert (found.rows, found.retention, found.partial) == (1, None, pytest.approx(95.0))
    below = build_report(PLAN, scores(), {**CHANCE, "refcoco": 45.0}).sections[1]
    assert {c.retention for c in below.cells} == {None}


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (make("chartqa", "vanilla", 64, SEEDS[0], 1.0), "in the plan, got chartqa/vanilla/64"),
        (make("chartqa", "parcel", 256, 1, 1.0), "in the plan, got chartqa/parcel/256 seed 1"),
        (make("chartqa", "parcel", 256, SEEDS[0], 1.0), "given once, got chartqa/parcel/256"),
    ],
)
def test_scores_outside_the_plan_or_given_twice_are_refused(extra, message):
    with pytest.raises(ValueError, match=message):
        build_report(PLAN, [*scores(), extra], CHANCE)


def test_plan_and_score_check_themselves():
    with pytest.raises(ValueError, match="seeds must be distinct"):
        Plan(**{**vars(PLAN), "seeds": (1, 1)})
    with pytest.raises(ValueError, match=r"full_budget .*\(256, 64\), got 16"):
        Plan(**{**vars(PLAN), "full_budget": 16})
    with pytest.raises(ValueError, match=r"groups.a .*got \['x'\]"):
        Plan(**{**vars(PLAN), "groups": {"a": ("x",)}})
    with pytest.raises(ValueError, match=r"score .*got nan for chartqa"):
        make("chartqa", "parcel", 64, SEEDS[0], math.nan)


# Published two-sided 5 % points of Student's t.
@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (120, 1.980)],
)
def test_an_interval_is_that_of_the_published_quantile(freedom: int, expected: float):
    num = freedom + 1
    low, high = t_interval(7.0, math.sqrt(num), num)  # type: ignore[misc]
    assert (high - 7.0, 7.0 - low) == pytest.approx((expected, expected), abs=5e-4)


@given(st.lists(st.floats(0, 150), min_size=1, max_size=9))
def test_mean_lies_between_the_scores(values: list[float]):
    assert min(values) <= summarize_scores(values)["mean"] <= max(values)


@pytest.mark.slow
@given(st.randoms(use_true_random=False))
def test_order_of_the_scores_does_not_matter(rng: random.Random):
    mixed = scores()
    rng.shuffle(mixed)
    assert build_report(PLAN, mixed, CHANCE) == REPORT


@given(st.lists(st.floats(0, 100), min_size=3, max_size=3), st.randoms(use_true_random=False))
def test_order_of_the_seeds_does_not_change_a_number(values: list[float], rng: random.Random):
    mixed = values[:]
    rng.shuffle(mixed)
    assert summarize_scores(mixed) == summarize_scores(values)


def test_cells_are_in_the_order_of_the_plan():
    order = [(c.method, c.budget) for c in CHARTQA.cells]
    assert order == [(m, b) for m in PLAN.methods for b in PLAN.budgets]
    assert all(isinstance(c, Cell) and c.benchmark == "refcoco" for c in REFCOCO.cells)


def test_a_dataset_in_a_nested_folder_is_no_cell():
    key = CellKey(benchmark="chartqa", method="parcel", budget=64, seed=7)
    assert CellKey.of_role(str(key)) == key
    assert CellKey.of_role("screened/mixture/2024/web") is None
