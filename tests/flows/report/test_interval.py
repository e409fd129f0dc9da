"""Intervals over seeds and items, the exact test of one seed, and the correction for many."""

import math

import numpy as np
import pytest
from scipy import stats

from flows.report.interval import PairedScores, estimate_interval, holm_correction, mcnemar_test
from perf import intervals as simulation

RNG = np.random.default_rng(3)


def test_without_items_it_is_the_t_interval_of_the_seeds():
    found = estimate_interval([PairedScores.of((1.0, 2.0, 3.5, 2.5))], [0] * 4)
    expected = stats.ttest_1samp([1.0, 2.0, 3.5, 2.5], 0)
    assert (found.low, found.high) == pytest.approx(expected.confidence_interval())
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.mean, found.over) == (2.25, "seeds")


def test_one_seed_has_the_clustered_interval_of_its_items():
    items = {"a": (3.0, 5.0), "b": (1.0,), "c": (2.0, -1.0, 4.0)}
    mean = 14 / 6
    off = [8 - 2 * mean, 1 - mean, 5 - 3 * mean]
    error = math.sqrt(sum(o * o for o in off) * 3 / 2) / 6
    found = estimate_interval([PairedScores.of((mean,), (items,))], [0])
    assert found.over == "items"
    assert found.high == pytest.approx(mean + stats.t.ppf(0.975, 2) * error)


def test_one_seed_without_items_has_a_mean_only():
    found = estimate_interval([PairedScores.of((2.0,))], [0])
    assert (found.mean, found.low, found.high, found.p, found.over) == (2.0, None, None, None, "")


def test_parts_are_those_of_a_balanced_analysis_of_variance():
    """Of one item per source: the textbook's mean squares, from the table itself."""
    table = RNG.normal(0, 1, (4, 1)) + RNG.normal(0, 3, (1, 30)) + RNG.normal(0, 2, (4, 30))
    by_seed = 30 * table.mean(axis=1).var(ddof=1)
    by_source = 4 * table.mean(axis=0).var(ddof=1)
    both = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    residual = (both**2).sum() / (3 * 29)
    half = math.sqrt(
        stats.t.ppf(0.975, 3) ** 2 * by_seed / 120
        + stats.t.ppf(0.975, 29) ** 2 * (by_source - residual) / 120
    )
    items = tuple({str(i): (x,) for i, x in enumerate(run)} for run in table.tolist())
    found = estimate_interval([PairedScores.of(table.mean(axis=1), items)], [0] * 4)
    assert found.high == pytest.approx(table.mean() + half)
    assert found.over == "seeds and items"


def test_p_is_the_level_at_which_the_interval_reaches_zero():
    values = tuple(RNG.normal(1.0, 1.0, 5))
    found = estimate_interval([PairedScores.of(values)], [0] * 5)
    assert found.p == pytest.approx(stats.ttest_1samp(values, 0).pvalue)
    assert estimate_interval([PairedScores.of((1.0, 1.0))], [0, 0]).p == 0.0
    assert estimate_interval([PairedScores.of((0.0, 0.0))], [0, 0]).p == 1.0


def test_trainings_of_their_own_tell_more_than_rows_of_one():
    values = [tuple(RNG.normal(1.0, 1.0, 3)) for _ in range(6)]
    same = estimate_interval([PairedScores.of(v, training="one") for v in values], [0] * 3)
    means = np.mean(values, axis=0)
    assert (same.low, same.high) == pytest.approx(stats.ttest_1samp(means, 0).confidence_interval())
    own = [PairedScores.of(v, training=str(i)) for i, v in enumerate(values)]
    variances = [np.var(v, ddof=1) / 3 / 36 for v in values]
    freedom = 2 * sum(variances) ** 2 / sum(v * v for v in variances)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(sum(variances))
    assert estimate_interval(own, [0] * 3).high == pytest.approx(np.mean(values) + half)


def test_a_pretraining_and_what_follows_from_it_is_one_draw():
    rows = [
        PairedScores.of((1.0, 2.0, 5.0, 6.0, 3.0, 3.0), training="a"),
        PairedScores.of((2.0, 3.0, 6.0, 7.0, 4.0, 4.0), training="b"),
    ]
    found = estimate_interval(rows, [0, 0, 1, 1, 2, 2])
    expected = stats.ttest_1samp([2.0, 6.0, 3.5], 0).confidence_interval()
    assert (found.low, found.high) == pytest.approx(expected)


def test_differences_are_paired_by_source_in_whatever_order_it_comes():
    one = PairedScores.of([50.0], [{"a": (100.0,), "b": (0.0,)}], "t")
    other = PairedScores.of([100.0], [{"b": (100.0,), "a": (100.0,)}])
    both = one.minus(other)
    assert (both.values.tolist(), both.sources, both.training) == ([-50.0], ("a", "b"), "t")
    assert both.sums.tolist() == [[0.0, -100.0]]
    more = PairedScores.of([100.0], [{"a": (100.0,), "b": (100.0, 100.0)}])
    assert one.minus(more).sources == ()
    assert one.minus(PairedScores.of([100.0])).sources == ()


def test_items_that_differ_from_seed_to_seed_are_unknown():
    assert PairedScores.of([1.0, 2.0], [{"a": (1.0,), "b": (1.0,)}, {"a": (2.0,)}]).sources == ()
    assert PairedScores.of([1.0], [{"a": (1.0,)}]).sources == ()


def test_one_seed_of_right_and_wrong_answers_is_tested_exactly():
    items = {str(i): (d,) for i, d in enumerate([100.0] * 8 + [-100.0] + [0.0] * 20)}
    row = PairedScores.of([700 / 29], [items])
    assert mcnemar_test(row) == pytest.approx(2 * (1 + 9) / 2**9)
    assert estimate_interval([row], [0]).p == mcnemar_test(row)
    assert mcnemar_test(PairedScores.of([0.0], [{"a": (0.0,), "b": (0.0,)}])) == 1.0
    assert mcnemar_test(PairedScores.of([25.0], [{"a": (50.0,), "b": (0.0,)}])) is None
    assert mcnemar_test(PairedScores.of([50.0], [{"a": (100.0, 0.0), "b": (0.0, 100.0)}])) is None
    assert mcnemar_test(PairedScores.of([1.0, 1.0], [items, items])) is None


def test_holm_corrects_step_by_step_and_never_below_a_smaller_one():
    chances = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}
    assert holm_correction(chances) == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert holm_correction({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}
    assert holm_correction({}) == {}


@pytest.mark.parametrize(("seeds", "least", "most"), [(3, 0.93, 0.99), (5, 0.93, 0.98)])
def test_simulated_studies_are_covered_where_t_alone_is_not(seeds: int, least: float, most: float):
    """A small edition of `perf.intervals`, whose figures are in docs/explanation/statistics.md."""
    spread = simulation.Spread("of sources", 1.0, 10.0, 5.0, 10.0)
    found = simulation.simulate(spread, simulation.Design(seeds=seeds), 300)
    assert least <= found.covered <= most
    assert found.covered_by_t < 0.9
