"""Intervals of a normal variable whose variance is not known, and seeds' variances."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from flows.report.seeds_variance import (
    PRIOR_CHANCE,
    PRIOR_SCALE,
    SeedSpread,
    find_outliers,
    seeds_variances,
)
from flows.report.variance import Variance

LEVELS = (0.05, 0.05 / 43, 1e-4)


@pytest.mark.parametrize("freedom", [1, 2, 4, 29.5])
@pytest.mark.parametrize("level", LEVELS)
def test_one_estimate_is_students_t_at_every_level(freedom: float, level: float):
    spread = Variance.estimated(4.0, freedom)
    expected = 2 * stats.t.isf(level / 2, freedom)
    assert spread.half_width(level) == pytest.approx(expected, rel=3e-4)
    assert spread.chance_beyond(expected) == pytest.approx(level, rel=3e-4)


def test_a_variance_that_is_known_or_none():
    assert Variance.known(9.0).half_width(0.05) == pytest.approx(3 * stats.norm.isf(0.025))
    none = Variance.known(0.0)
    assert (none.half_width(0.05), none.chance_beyond(0.0), none.chance_beyond(0.1)) == (0, 1, 0)
    assert Variance.sum_of([]).half_width(0.05) == 0


@pytest.mark.parametrize("level", LEVELS)
def test_two_estimates_are_behrens_and_fishers(level: float):
    """The sum of two of Student's variables, by the density of one and the tail of the other."""
    spread = Variance.sum_of([Variance.estimated(1.0, 2), Variance.estimated(3.0, 9)])
    half = spread.half_width(level)

    def beyond(error: float) -> float:
        tails = stats.t.sf((half - error) / 3**0.5, 9) + stats.t.cdf((-half - error) / 3**0.5, 9)
        return float(stats.t.pdf(error, 2) * tails)

    # In pieces: quad sees no narrow peak in an infinite range.
    ends = [-math.inf, -10 * half, -half, 0, half, 10 * half, math.inf]
    pieces = [integrate.quad(beyond, a, b)[0] for a, b in itertools.pairwise(ends)]
    assert sum(pieces) == pytest.approx(level, rel=0.01)


def test_a_sum_of_many_is_that_of_as_many_drawn_at_random():
    parts = [Variance.estimated(k + 1.0, 2 + k) for k in range(6)]
    rng = np.random.default_rng(0)
    draws = sum((k + 1) * (2 + k) / rng.chisquare(2 + k, 200_000) for k in range(6))
    found = Variance.sum_of(parts)
    for error in (5.0, 10.0, 20.0):
        expected = float(np.mean(2 * stats.norm.sf(error / np.sqrt(draws))))
        assert found.chance_beyond(error) == pytest.approx(expected, rel=0.04)


def of_seeds(variance: float, name: str = "a", freedom: int = 2) -> SeedSpread:
    return SeedSpread(
        training=name, variance=variance, freedom=freedom, answers=1.0, answers_freedom=120.0
    )


@pytest.mark.parametrize("variance", [0.5, 3.0, 40.0])
def test_a_training_alone_is_bayes_rule_over_ratio_and_answers(variance: float):
    """By a plain sum over two grids: of ratio, 1 or half-Cauchy, and of the answers' variance."""
    (found,) = seeds_variances([of_seeds(variance)])
    quantiles = (np.arange(4000) + 0.5) / 4000
    ratio = np.append(1 + (PRIOR_SCALE * np.tan(np.pi / 2 * quantiles)) ** 2, 1.0)
    prior = np.append(np.full(4000, (1 - PRIOR_CHANCE) / 4000), PRIOR_CHANCE)
    answers = np.exp(np.linspace(-1.5, 1.5, 400))[:, None]
    weights = stats.chi2.pdf(2 * variance / (ratio * answers), 2) / (ratio * answers)
    weights = prior * weights * stats.chi2.pdf(120 / answers, 120) / answers
    spread = np.sqrt(ratio * answers)
    for error in (2.0, 5.0, 12.0):
        expected = float((weights * 2 * stats.norm.sf(error / spread)).sum() / weights.sum())
        # The parts of the mixture are a little wider than the prior that they stand for.
        assert found.chance_beyond(error) == pytest.approx(expected, rel=0.15)


def test_seeds_without_differences_between_answers_have_their_own_variance_alone():
    (found,) = seeds_variances([SeedSpread(training="a", variance=2.0, freedom=2, answers=0.0)])
    assert found.half_width(0.05) == pytest.approx(2**0.5 * stats.t.isf(0.025, 2), rel=1e-4)


def test_many_trainings_whose_seeds_differ_by_chance_make_each_other_sure():
    rng = np.random.default_rng(0)
    spreads = [of_seeds(v, str(k)) for k, v in enumerate(rng.chisquare(2, 27) / 2)]
    together = seeds_variances(spreads)[0].half_width(0.05)
    (alone,) = seeds_variances(spreads[:1])
    assert together < 0.7 * alone.half_width(0.05)
    assert 1.0 < together / stats.norm.isf(0.025) < 1.3


def test_one_noisy_training_keeps_its_own_variance():
    rng = np.random.default_rng(0)
    quiet = [of_seeds(v, str(k)) for k, v in enumerate(rng.chisquare(2, 26) / 2)]
    *others, noisy = seeds_variances([*quiet, of_seeds(400.0, "noisy")])
    assert noisy.half_width(0.05) > 20 * stats.norm.isf(0.025)
    # And the others are as narrow as they would be without it, nearly.
    without = seeds_variances(quiet)
    for beside, alone in zip(others, without, strict=True):
        assert beside.half_width(0.05) < 1.25 * alone.half_width(0.05)


def benchmarks_of_100_answers() -> list[SeedSpread]:
    """Returns the seeds of 24 trainings whose variance is twice what single answers make."""
    squares = np.random.default_rng(0).chisquare(2, 24) / 2
    return [
        dataclasses.replace(of_seeds(2 * v, str(k)), num_answers=100) for k, v in enumerate(squares)
    ]


def test_seeds_that_differ_show_more_in_a_larger_benchmark():
    """Seeds as different as an answer of 100: ratio 2 there, 51 with 5,000 answers."""
    small = benchmarks_of_100_answers()
    # Its two seeds lie closer than they should: a tenth of their variance.
    large = dataclasses.replace(of_seeds(5.1, "large"), num_answers=5000)
    *_, spread = seeds_variances([*small, large])
    of_one_size = dataclasses.replace(large, num_answers=100)
    *_, blind = seeds_variances([*small, of_one_size])
    assert spread.half_width(0.05) > 1.5 * blind.half_width(0.05)
    assert spread.half_width(0.05) > 0.6 * 51**0.5 * stats.norm.isf(0.025)


def test_benchmarks_of_one_training_count_as_one():
    rng = np.random.default_rng(3)
    own = [of_seeds(v, str(k)) for k, v in enumerate(rng.chisquare(2, 5) / 2)]
    once = seeds_variances([*own, of_seeds(30.0, "twin")])[0]
    thrice = seeds_variances([*own, *[of_seeds(30.0, "twin")] * 3])[0]
    assert once.half_width(0.05) == pytest.approx(thrice.half_width(0.05))


def test_only_seeds_that_differ_far_more_than_those_of_other_trainings_are_outliers():
    rng = np.random.default_rng(0)
    quiet = [of_seeds(v, str(k)) for k, v in enumerate(rng.chisquare(2, 26) / 2)]
    assert find_outliers([*quiet, of_seeds(30.0, "noisy")]) == [False] * 26 + [True]
    assert not any(find_outliers([*quiet, of_seeds(3.0, "usual")]))
    # Of all others that are as noisy, none is; nor is one that has no other.
    assert not any(find_outliers([of_seeds(30 * s.variance, str(s.training)) for s in quiet]))
    twin = of_seeds(3000.0, "twin")
    assert find_outliers([twin, twin]) == [False, False]
    assert find_outliers([*quiet, twin, twin]) == [False] * 26 + [True, True]
    unknown = SeedSpread(training="a", variance=2.0, freedom=2)
    assert find_outliers([]) == []
    assert find_outliers([unknown, unknown]) == [False, False]


def test_seeds_of_a_larger_benchmark_may_show_more():
    """Seeds as different as an answer of 100: ratio 2 there, 51 with 5,000 answers."""
    small = benchmarks_of_100_answers()
    large = dataclasses.replace(of_seeds(51.0, "large"), num_answers=5000)
    assert not any(find_outliers([*small, large]))
    assert find_outliers([*small, dataclasses.replace(large, num_answers=100)])[-1]


@pytest.mark.parametrize("ratio", [1.0, 5.0])
def test_of_trainings_alike_one_is_an_outlier_in_5_of_100_tables(ratio: float):
    rng, num = np.random.default_rng(1), 300
    tables = [
        [of_seeds(ratio * v, str(k)) for k, v in enumerate(rng.chisquare(2, 9) / 2)]
        for _ in range(num)
    ]
    found = sum(any(find_outliers(spreads)) for spreads in tables) / num
    assert 0.01 <= found <= 0.05 + 3 * (0.05 * 0.95 / num) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [1.0, 3.0])
def test_p_values_of_27_trainings_hold_at_the_levels_of_a_whole_table(ratio: float):
    """Of 21,600 p-values of equal methods no more than expected are below 0.05 / 27."""
    rng, chances = np.random.default_rng(1), []
    for _ in range(800):
        variances = ratio * rng.chisquare(2, 27) / 2
        errors = rng.normal(0, ratio**0.5, 27)
        found = seeds_variances([of_seeds(v, str(k)) for k, v in enumerate(variances)])
        chances += [v.chance_beyond(e) for v, e in zip(found, errors, strict=True)]
    for level in (0.05, 0.05 / 27):
        expected = level * len(chances)
        assert np.sum(np.array(chances) < level) < expected + 3 * expected**0.5
