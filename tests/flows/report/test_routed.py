"""The judge of budgets chosen per input: a random mixture of budgets of the same mean cost."""

import csv
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.report.cells import Cost, Plan
from flows.report.routed import (
    Routed,
    RoutedKey,
    areas,
    gains,
    judged,
    mixture_at,
    plot_png,
    to_csv,
    to_latex,
    to_markdown,
)

BUDGETS = (16, 64, 256)
NUM = 200


def items(seed: int, knows: float, threshold: float = 0.5) -> Routed:
    """Items that 16, 64 or 256 tokens are enough for, and a router that knows which, or less so."""
    world, own = np.random.default_rng(7), np.random.default_rng(seed)
    enough = world.integers(0, 3, NUM)
    right = np.where(np.arange(3) >= enough[:, None], 0.9, 0.2)
    said = np.where(own.random(NUM) < knows, enough, own.integers(0, 3, NUM))
    sure = own.uniform(0.6, 0.99, (NUM, 1))
    need = np.where(said[:, None] > np.arange(2), sure, 1 - sure) - [0.0, 0.005]
    return Routed(
        budgets=BUDGETS,
        sources=tuple(f"picture {i // 2}" for i in range(NUM)),
        need=need,
        chosen=(need > threshold).sum(axis=1),
        scores=(own.random((NUM, 3)) < right).astype(float),
    )


def plan(*benchmarks: str, seeds: tuple[int, ...] = (1, 2, 3)) -> Plan:
    costs = [
        Cost(
            benchmarks=(name,),
            method="parcel",
            budget=16,
            num_images=16 if "vid" in name else 1,
            tflops=1.0,
            kv_mb=1.0,
        )
        for name in benchmarks
    ]
    return Plan(
        methods=("parcel",), benchmarks=benchmarks, budgets=BUDGETS, seeds=seeds, costs=tuple(costs)
    )


@given(seed=st.integers(0, 1000), knows=st.floats(0, 1))
@settings(deadline=None, max_examples=20)
def test_a_gain_is_the_score_less_that_of_the_mixture_at_the_same_cost(seed: int, knows: float):
    run = items(seed, knows)
    cost = np.array(BUDGETS)[run.chosen].mean()
    score = run.scores[np.arange(NUM), run.chosen].mean()
    mixture = mixture_at(BUDGETS, run.scores.mean(axis=0), cost)
    assert mixture >= np.interp(cost, BUDGETS, run.scores.mean(axis=0)) - 1e-12
    assert gains(run, run.chosen).mean() == pytest.approx(score - mixture)


@pytest.mark.parametrize("place", [0, 2])
def test_the_least_or_the_largest_for_all_gains_nothing_item_by_item(place: int):
    run = items(0, 0.5)
    np.testing.assert_allclose(gains(run, np.full(NUM, place)), 0, atol=1e-12)


def test_a_budget_that_a_mixture_of_others_beats_is_no_part_of_the_best_mixture():
    assert mixture_at(BUDGETS, (0.5, 0.4, 0.7), 64) == pytest.approx(0.5 + 0.2 * 48 / 240)
    assert mixture_at(BUDGETS, (0.5, 0.6, 0.7), 64) == 0.6
    assert mixture_at(BUDGETS, (0.5, 0.6, 0.5), 160) == pytest.approx(0.55)


def test_choices_by_lot_gain_nothing_and_knowing_gains():
    rows = judged(
        plan("blind", "known"),
        {
            ("blind", "parcel"): {s: items(s, 0.0) for s in (1, 2, 3)},
            ("known", "parcel"): {s: items(s, 0.9) for s in (1, 2, 3)},
        },
    )
    blind, known, over = rows
    assert blind.area.mean < 0  # It spreads over three budgets, the mixture over two.
    assert known.area.low > 0
    assert known.other.mean > 2  # Which budget is enough is the items', not the seed's.
    assert known.gain.low > 0
    assert known.score - known.mixture == pytest.approx(known.gain.mean)
    assert over.over == "all"
    assert over.area.mean == pytest.approx((blind.area.mean + known.area.mean) / 2)
    # An oracle picks lucky budgets: with another seed's answers its gain is smaller.
    assert 0 < known.oracle_other < known.oracle


def between_two(run: Routed, ratio: int) -> Routed:
    """The same items between two budgets, where a blind router is a mixture of these."""
    return Routed(
        budgets=(16, 16 * ratio),
        sources=run.sources,
        need=run.need[:, 1:],
        chosen=run.chosen // 2,
        scores=run.scores[:, [0, 2]],
    )


@pytest.mark.slow
def test_intervals_hold_the_truth_as_often_as_they_say():
    """Of routers that know nothing: some 95 of 100 intervals hold 0."""
    held, trials = 0, 25
    for trial in range(trials):
        runs = {s: between_two(items(1000 * trial + s, 0.0), 16) for s in (1, 2, 3)}
        (row,) = judged(plan("blind"), {("blind", "parcel"): runs})
        held += row.area.low <= 0 <= row.area.high
    assert held >= 0.88 * trials


def test_areas_weigh_each_doubling_alike():
    few, many = (between_two(items(3, 1.0), ratio) for ratio in (2, 1024))
    # A mixture of cost c has the share (c - low) / (high - low) of the larger budget: where the
    # ratio is near 1 each share weighs alike, and where it is large most of the width is small
    # shares, at which little can be gained.
    assert areas(few).mean() > 1.5 * areas(many).mean() > 0


@pytest.mark.slow
def test_images_and_video_are_told_apart_and_written():
    names = ("chart", "scene", "vid_a", "vid_b")
    found = {(name, "parcel"): {s: items(s, 0.5) for s in (1, 2)} for name in names}
    rows = judged(plan(*names, seeds=(1, 2)), found)
    assert [(r.over, r.modality) for r in rows[4:]] == [("all", "image"), ("all", "video")]
    read = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert float(read[0]["area_low"]) == pytest.approx(rows[0].area.low, abs=1e-4)
    assert float(read[3]["oracle_other_seed"]) == pytest.approx(rows[3].oracle_other, abs=1e-4)
    assert "| vid_a | video | parcel |" in to_markdown(rows)
    head, *lines = [line for line in to_latex(rows).splitlines() if " & " in line]
    assert len(lines) == len(rows) == 6
    assert lines[2].startswith(r"vid\_a & video & parcel & ")
    assert {line.count(" & ") for line in lines} == {head.count(" & ")}
    assert plot_png(rows) == plot_png(rows)
    assert plot_png(rows).startswith(b"\x89PNG")


def test_with_one_seed_there_is_no_other():
    (row,) = judged(plan("chart", seeds=(1,)), {("chart", "parcel"): {1: items(1, 0.5)}})
    assert (row.other, row.oracle_other) == (None, None)
    assert to_csv([row]).splitlines()[1].split(",")[13] == ""
    assert to_latex([row]).count(" & --") == 2


def test_a_role_is_read_as_it_is_written():
    key = RoutedKey(benchmark="refcoco:val@448", method="parcel", seed=12)
    assert RoutedKey.of_role(str(key)) == key
    assert RoutedKey.of_role("chartqa/parcel/16/12") is None
