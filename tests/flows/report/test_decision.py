"""When a sweep may stop: the interval, its promise, and what a resumed sweep decides."""

import math

import numpy as np
import pytest
from scipy import stats

from flows.report.decision import CROSSING, HORIZON, SCALE, decide_pair, decision_bound
from perf import decision as simulation

RNG = np.random.default_rng(7)


def test_the_bound_is_where_the_ratio_of_likelihoods_reaches_its_threshold():
    """By integrating numerically over the effects, against the closed form."""
    num, t = 6, decision_bound(6, 0.05)
    effects = np.linspace(-40, 40, 80_001)
    weights = stats.norm.pdf(effects, scale=math.sqrt(SCALE))
    given = stats.nct.pdf(t, num - 1, effects * math.sqrt(num))
    ratio = np.trapezoid(np.nan_to_num(given) * weights, effects) / stats.t.pdf(t, num - 1)
    assert ratio == pytest.approx(CROSSING / 0.05, rel=1e-3)


def test_a_clear_difference_is_decided_and_an_unclear_one_is_not():
    clear = decide_pair(np.array([2.0, 2.5, 1.8, 2.2, 2.1]))
    assert clear.decided
    assert 0 < clear.low < clear.mean < clear.high
    open_one = decide_pair(np.array([2.0, -2.5, 1.8, -2.2, 0.1, 0.3]))
    assert not open_one.decided
    assert open_one.num_seeds == 6
    assert open_one.low < 0 < open_one.high


def test_two_seeds_never_decide():
    assert decide_pair(np.array([2.0, 2.0])).low == -math.inf


@pytest.mark.parametrize("error", [0.1, 0.05, 0.025, 0.05 / 3])
def test_looks_up_to_the_horizon_are_wrong_as_seldom_as_promised(error: float):
    """20,000 sweeps without an effect; t after n seeds, by running sums."""
    values = np.random.default_rng(3).normal(size=(20_000, HORIZON))
    num = np.arange(2, HORIZON + 1)
    sums = values.cumsum(1)[:, 1:]
    spread = (values**2).cumsum(1)[:, 1:] - sums**2 / num
    t = np.abs(sums) / np.sqrt(num) / np.sqrt(spread / (num - 1))
    limits = np.array([decision_bound(int(n), error) for n in num])
    wrong = (t > limits).any(axis=1).mean()
    noise = math.sqrt(error / len(values))
    assert 0.75 * error < wrong < error + 2 * noise


@pytest.mark.parametrize("shift", [0.8, -0.8])
def test_later_seeds_change_no_decision(shift: float):
    values = RNG.normal(shift, 0.5, 40)
    first = decide_pair(values)
    assert first.decided
    assert first.num_seeds < 40
    for num in range(1, 41):
        now = decide_pair(values[:num])
        assert now.decided == (num >= first.num_seeds)
        if now.decided:
            assert now == first


def test_units_do_not_matter_and_methods_may_change_places():
    values = RNG.normal(0.4, 1.0, 12)
    one, other = decide_pair(values), decide_pair(-10 * values)
    assert other.num_seeds == one.num_seeds
    assert (other.low, other.high) == pytest.approx((-10 * one.high, -10 * one.low))


def test_benchmarks_count_as_their_mean():
    values = RNG.normal(1.0, 1.0, (6, 4))
    assert decide_pair(values) == decide_pair(values.mean(axis=1))


def test_a_smaller_error_takes_more():
    assert [decision_bound(8, e) for e in (0.05, 0.01)] == sorted(
        decision_bound(8, e) for e in (0.05, 0.01)
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(HORIZON + 1), "at most 200 seeds, got 201"),
        (np.zeros(0), r"at least one, got shape \(0,\)"),
        (np.zeros((2, 2, 2)), r"got shape \(2, 2, 2\)"),
        (np.array([1.0, math.nan]), "got nan for seed 1; leave out seeds"),
        (np.array([[1.0, 2.0], [math.nan, 1.0]]), "for seed 1; leave out seeds"),
    ],
)
def test_what_is_no_array_of_differences_is_refused(values: np.ndarray, message: str):
    with pytest.raises(ValueError, match=message):
        decide_pair(values)


def test_an_error_of_none_is_refused():
    with pytest.raises(ValueError, match=r"error must be in \(0, 0.1\], got 0"):
        decide_pair(np.ones(3), error=0)


def test_simulated_sweeps_are_seldom_wrong_and_cheap():
    """A small edition of `perf.decision`, whose figures are in docs/explanation/statistics.md."""
    same = simulation.simulate(0.0, max_seeds=32, sweeps=1000)
    assert same.wrong <= 0.05
    fixed = simulation.fixed_design(0.75)
    assert fixed == 16
    effects = [simulation.simulate(0.75 * k, max_seeds=2 * fixed, sweeps=300) for k in (1, 2, 3)]
    assert all(one.wrong <= 0.05 for one in effects)
    assert np.mean([one.seeds for one in effects]) <= 0.7 * fixed
    assert effects[0].decided >= 0.75
