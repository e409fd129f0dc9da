"""The standard error of a margin over chance."""

import math

import numpy as np
import pytest
from scipy import stats

from flows.report.items import mean_item_score
from flows.report.margin import margin_errors
from flows.report.paired_scores import PairedScores
from tests.flows.report.simulated_studies import source_names

THREE = 2 * stats.norm.sf(3)
"""Share of studies that are three standard errors off."""


def paired(runs: list[dict[str, tuple[float, ...]]]) -> PairedScores:
    return PairedScores.of([mean_item_score(run) for run in runs], runs, is_percentage=True)


def error_of(
    runs: list[dict[str, tuple[float, ...]]], guess: dict[str, tuple[float, ...]], chance: float
) -> float | None:
    return margin_errors([paired(runs)], [(chance, guess)], [[0] * len(runs)])[0]


def test_the_error_of_one_seed_is_a_third_of_students_interval_at_three():
    values = np.random.default_rng(1).normal(50, 10, 40)
    run = {str(place): (value,) for place, value in enumerate(values)}
    half = stats.t.isf(THREE / 2, 39) * values.std(ddof=1) / math.sqrt(40)
    assert error_of([run], {}, 20.0) == pytest.approx(half / 3, rel=1e-4)


def test_what_is_easy_for_the_guess_too_adds_no_doubt():
    easy = {str(place): (float(value),) for place, value in enumerate(range(0, 90, 3))}
    better = {source: (score + 5,) for source, (score,) in easy.items()}
    beside = error_of([better], easy, 43.5)
    alone = error_of([better], {}, 43.5)
    assert beside is not None
    assert alone is not None
    # Not none at all: as if one answer of the thirty differed.
    assert 100 / 30 < beside < alone


def test_a_picture_asked_twice_counts_as_one():
    once = {str(i): (100.0 * (i % 2),) for i in range(10)}
    twice = {source: (score, score) for source, (score,) in once.items()}
    assert error_of([twice], {}, 20.0) == pytest.approx(error_of([once], {}, 20.0))


FIRST = {"a": (100.0, 100.0), "b": (0.0,)}


@pytest.mark.parametrize(
    ("runs", "guess"),
    [
        ([{"a": (100.0, 0.0)}], {}),
        ([FIRST, {"a": (100.0, 0.0)}], {"a": (100.0, 0.0), "b": (0.0,)}),
        ([FIRST], {"a": (0.0,), "b": (0.0,)}),
    ],
)
def test_error_is_unknown_without_items_or_with_items_that_differ(runs, guess):
    assert error_of(runs, guess, 10.0) is None


def test_error_is_unknown_without_a_guess():
    assert margin_errors([paired([FIRST])], [(None, {})], [[0]]) == [None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "num_seeds", "seed"),
    [([90] + [10] * 9, 1, 0.0), ([90] + [10] * 9, 3, 0.0), ([20] * 5, 3, 0.0), ([1] * 200, 2, 5.0)],
)
def test_cells_of_no_skill_are_hardly_ever_above_chance(
    sizes: list[int], num_seeds: int, seed: float
):
    """One in 740 is promised; of 1,500, with noise, at most six (2.6 % were with plain errors)."""
    rng, counts = np.random.default_rng(0), np.array(sizes)
    false = 0
    for _ in range(1500):
        effects = rng.normal(0, 10, (1, len(counts)))
        both = np.repeat(effects + rng.normal(0, 10, (num_seeds, len(counts))), counts, axis=1)
        items = both + rng.normal(0, seed, (num_seeds, 1)) * (num_seeds > 1)
        items += rng.normal(0, 20, items.shape)
        row = PairedScores(
            values=items.mean(axis=1), sources=source_names(counts), counts=counts, items=items
        )
        (error,) = margin_errors([row], [(0.0, {})], [[0] * num_seeds])
        assert error is not None
        false += row.values.mean() > 3 * error
    assert false <= 6
