"""When a sweep may stop: the interval, its promise, and what a resumed sweep decides."""

import math

import numpy as np
import pytest
from scipy import stats

from flows.report.decision import (
    LEAST_SEEDS,
    SCALE,
    Decision,
    decide_pair,
    decision_bound,
    unseen_loss,
)
from flows.report.interval import estimate_interval
from flows.report.paired_scores import PairedScores
from tests.flows.report import simulated_sweeps as simulation

RNG = np.random.default_rng(7)


def decide(values: np.ndarray, *, error: float = 0.05, least_seeds: int = 2) -> Decision:
    """The decision on one benchmark whose items are unknown."""
    row = PairedScores(values=np.asarray(values))
    return decide_pair([row], error=error, least_seeds=least_seeds)


def test_the_bound_is_where_the_ratio_of_likelihoods_reaches_its_threshold():
    """By integrating numerically over the effects, against the closed form."""
    num, t = 6, decision_bound(6, 0.05)
    effects = np.linspace(-40, 40, 80_001)
    weights = stats.norm.pdf(effects, scale=math.sqrt(SCALE))
    given = stats.nct.pdf(t, num - 1, effects * math.sqrt(num))
    ratio = np.trapezoid(np.nan_to_num(given) * weights, effects) / stats.t.pdf(t, num - 1)
    assert ratio == pytest.approx(1 / 0.05, rel=1e-3)


def test_a_clear_difference_is_decided_and_an_unclear_one_is_not():
    clear = decide(np.array([2.0, 2.5, 1.8, 2.2, 2.1]))
    assert clear.decided
    assert 0 < clear.low < clear.mean < clear.high
    open_one = decide(np.array([2.0, -2.5, 1.8, -2.2, 0.1, 0.3]))
    assert not open_one.decided
    assert not open_one.hinges_on_unseen
    assert open_one.num_seeds == 6
    assert open_one.low < 0 < open_one.high


def test_two_seeds_never_decide():
    assert decide(np.array([2.0, 2.0])).low == -math.inf


@pytest.mark.parametrize("error", [0.1, 0.05, 0.025, 0.05 / 3])
def test_two_hundred_looks_are_wrong_as_seldom_as_promised(error: float):
    """20,000 sweeps without an effect; t after n seeds, by running sums."""
    values = np.random.default_rng(3).normal(size=(20_000, 200))
    num = np.arange(2, 201)
    sums = values.cumsum(1)[:, 1:]
    spread = (values**2).cumsum(1)[:, 1:] - sums**2 / num
    t = np.abs(sums) / np.sqrt(num) / np.sqrt(spread / (num - 1))
    limits = np.array([decision_bound(int(n), error) for n in num])
    wrong = (t > limits).any(axis=1).mean()
    # The ratio jumps past its threshold, and no sweep runs for ever: so the error is less.
    assert 0.45 * error < wrong <= error


@pytest.mark.parametrize("shift", [0.8, -0.8])
def test_later_seeds_change_no_decision(shift: float):
    values = RNG.normal(shift, 0.5, 40)
    first = decide(values)
    assert first.decided
    assert first.num_seeds < 40
    for num in range(1, 41):
        now = decide(values[:num])
        assert now.decided == (num >= first.num_seeds)
        if now.decided:
            assert now == first


def test_units_do_not_matter_and_methods_may_change_places():
    values = RNG.normal(0.4, 1.0, 12)
    one, other = decide(values), decide(-10 * values)
    assert other.num_seeds == one.num_seeds
    assert (other.low, other.high) == pytest.approx((-10 * one.high, -10 * one.low))


def test_rows_of_one_training_count_as_their_mean():
    values = RNG.normal(1.0, 1.0, (6, 4))
    rows = [PairedScores(values=of_row, training="one") for of_row in values.T]
    found, expected = decide_pair(rows, least_seeds=2), decide(values.mean(axis=1))
    assert (found.num_seeds, found.decided) == (expected.num_seeds, expected.decided)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_a_sweep_calls_no_difference_that_the_table_does_not():
    for shift in np.linspace(-3, 3, 25):
        items = shift + RNG.normal(0, 3, 40) + RNG.normal(0, 1, (6, 1)) + RNG.normal(0, 2, (6, 40))
        runs = [{str(i): (x,) for i, x in enumerate(run)} for run in items.tolist()]
        row = PairedScores.of(items.mean(axis=1), runs)
        decision = decide_pair([row], least_seeds=2)
        table = estimate_interval(
            [row.of_seeds(range(decision.num_seeds))], [0] * decision.num_seeds
        )
        assert decision.low < table.low < table.high < decision.high


def test_two_pretrainings_do_not_decide_however_many_seeds():
    values = np.concatenate([RNG.normal(2.0, 0.1, 20), RNG.normal(3.0, 0.1, 20)])
    row = PairedScores(values=values)
    assert not decide_pair([row], [0] * 20 + [1] * 20).decided
    assert decide_pair([row], least_seeds=2).num_seeds == 3


def test_a_smaller_error_takes_more():
    assert [decision_bound(8, e) for e in (0.05, 0.01)] == sorted(
        decision_bound(8, e) for e in (0.05, 0.01)
    )


def test_fewer_seeds_than_the_least_settle_nothing():
    values = RNG.normal(5.0, 0.1, 30)
    few = decide(values[: LEAST_SEEDS - 1], least_seeds=LEAST_SEEDS)
    assert (few.decided, few.num_seeds, few.low) == (False, LEAST_SEEDS - 1, -math.inf)
    assert decide_pair([PairedScores(values=values)]).num_seeds == LEAST_SEEDS
    assert decide(values, least_seeds=5).num_seeds == 5
    # Why it is that many: a method that collapses in a fifth of its seeds shows none of it.
    assert 0.8**LEAST_SEEDS < 0.05 / 2 < 0.8 ** (LEAST_SEEDS - 1)


def rows_of(num: int, *sets: str) -> list[PairedScores]:
    """Benchmarks of some pictures; those with the same letter ask about the same ones."""
    return [
        PairedScores(
            values=np.zeros(3),
            sources=tuple(f"{letter}{number:05d}" for number in range(num)),
            counts=np.ones(num, int),
            items=np.zeros((3, num)),
        )
        for letter in sets
    ]


def test_a_loss_that_no_picture_shows_is_the_rule_of_three():
    assert unseen_loss(rows_of(1000, "a"), 0.05) == pytest.approx(100 * 3 / 1000, rel=0.01)
    # Other pictures show a loss that concerns one benchmark; the same ones hide it in both.
    assert unseen_loss(rows_of(1000, "a", "b"), 0.05) == pytest.approx(0.15, rel=0.01)
    assert unseen_loss(rows_of(1000, "a", "a"), 0.05) == pytest.approx(0.3, rel=0.01)
    assert unseen_loss([PairedScores(values=np.zeros(3))], 0.05) == 0.0


def test_a_picture_with_half_of_the_items_hides_more_than_one_of_many():
    counts = np.array([99, *[1] * 99])
    uneven = simulation.of_pictures(np.zeros((3, 198)), counts, training="a", shared=True)
    equal = 198**2 / (99**2 + 99)
    assert unseen_loss([uneven], 0.05) == pytest.approx(100 * (1 - 0.05 ** (1 / equal)))
    # The same pictures in a benchmark of even ones: each counts by its mean share of the two.
    even = simulation.of_pictures(np.zeros((3, 100)), np.ones(100, int), training="b", shared=True)
    shares = np.mean([counts / 198, np.full(100, 0.01)], axis=0)
    both = 100 * (1 - 0.05 ** np.sum(shares**2))
    assert unseen_loss([uneven, even], 0.05) == pytest.approx(both)


def test_a_gain_that_rare_losses_could_undo_is_not_settled():
    def decided(gain: float, num: int) -> Decision:
        items = gain + RNG.normal(0, 0.1, (20, num))
        return decide_pair([simulation.of_pictures(items, np.ones(num, int), training="")])

    open_one = decided(1.4, 200)
    assert not open_one.decided
    assert open_one.hinges_on_unseen
    assert (open_one.low, open_one.high) == pytest.approx(
        (open_one.mean - open_one.unseen, open_one.mean + open_one.unseen)
    )
    assert decided(1.6, 200).decided
    assert decided(1.4, 300).decided


def test_a_decision_says_what_it_is_made_from():
    rows = [*rows_of(30, "a", "a", "b"), PairedScores(values=np.zeros(3))]
    decision = decide_pair(rows, [0, 1, 2], error=0.01, least_seeds=2)
    assert decision.found is not None
    found = decision.found
    assert (found.seeds, found.pretrainings, found.pictures, found.items) == (3, 3, 60, 90)
    assert (decision.num_benchmarks, decision.error) == (4, 0.01)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([PairedScores(values=np.zeros(0))], "at least one seed, got none"),
        ([], "at least one benchmark"),
    ],
)
def test_what_is_no_comparison_is_refused(rows: list[PairedScores], message: str):
    with pytest.raises(ValueError, match=message):
        decide_pair(rows)


def test_an_error_of_none_is_refused():
    with pytest.raises(ValueError, match=r"error must be in \(0, 0.1\], got 0"):
        decide(np.ones(3), error=0)


def share_wrong(shape: simulation.Equal, sweeps: int, max_seeds: int) -> float:
    ends = simulation.decide_equal(shape, sweeps, max_seeds)
    return float(np.mean([end.decided for end in ends]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        simulation.trainings("1 training", [1.0]),
        simulation.pictures(200, 20.0, 0.5),
        simulation.collapses(0.2),
        simulation.rare_losses(200, 200),
    ],
    ids=lambda shape: shape.name,
)
def test_equal_methods_are_seldom_called_different(shape: simulation.Equal):
    """A small edition; the noise is two binomial standard errors."""
    assert share_wrong(shape, 200, 24) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 200)


@pytest.mark.deep
def test_equal_methods_are_seldom_called_different_in_every_shape():
    # Where only the means are equal, and 95 of 100 seeds favour one method, no test of a few seeds
    # can know of the others (`HIDDEN`); that is said beside the decision.
    for shape in simulation.EQUAL:
        assert share_wrong(shape, 200, 30) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 200), shape.name


@pytest.mark.slow
def test_effects_larger_than_the_smallest_take_fewer_seeds_than_a_fixed_study():
    for effect, fixed in ((0.5, 34), (1.0, 10)):
        assert simulation.fixed_design(effect) == fixed
        ends = simulation.decide_effect(1.5 * effect, 200, 2 * fixed)
        assert np.mean([end.num_seeds for end in ends]) <= 0.85 * fixed
        assert np.mean([end.decided and end.mean > 0 for end in ends]) >= 0.95
