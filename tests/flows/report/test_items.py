"""The standard error of a margin over chance, against numbers worked out by hand."""

import hashlib
import json
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from flows.report.items import items_by_source, mean_item_score, standard_error
from flows.report.items_reader import ItemsReader
from model.eval.items_file import write_items

# Picture a has two questions, b one. Right answers count 100.
GUESS = {"a": (100.0, 0.0), "b": (0.0,)}
FIRST = {"a": (100.0, 100.0), "b": (0.0,)}
SECOND = {"a": (0.0, 100.0), "b": (0.0,)}


def test_error_over_seeds_and_pictures_is_that_worked_out_by_hand():
    # The seeds' means are 200/3 and 100/3: variance (100/3)²/2, of two seeds.
    over_seeds = (100 / 3) ** 2 / 2 / 2
    # Less the guess, a has 150 - 100 = 50 and b 0; the mean of 3 is 50/3; a is 50 - 2 · 50/3 off,
    # b 0 - 50/3: two squares of 50/3, times 2/(2 - 1), over 3².
    over_pictures = 2 * (50 / 3) ** 2 * 2 / 9
    error = standard_error([FIRST, SECOND], GUESS)
    assert error == pytest.approx(math.sqrt(over_seeds + over_pictures))


def test_one_seed_has_the_error_of_its_pictures_alone():
    # Less the guess: a 100, b 0, mean 100/3; a is 100 - 200/3 off, b -100/3.
    assert standard_error([FIRST], GUESS) == pytest.approx(math.sqrt(2 * (100 / 3) ** 2 * 2 / 9))


def test_what_is_easy_for_the_guess_too_adds_no_doubt():
    easy = {"a": (90.0,), "b": (10.0,), "c": (50.0,)}
    better = {source: (score + 5,) for source, (score,) in easy.items()}
    assert standard_error([better], easy) == pytest.approx(0.0)
    assert standard_error([better], {}) == pytest.approx(40 / math.sqrt(3))


def test_a_picture_asked_twice_counts_as_one():
    once = {str(i): (100.0 * (i % 2),) for i in range(10)}
    twice = {source: (score, score) for source, (score,) in once.items()}
    assert standard_error([twice], {}) == pytest.approx(standard_error([once], {}))


@pytest.mark.parametrize(
    ("runs", "guess"),
    [
        ([], GUESS),
        ([{}], {}),
        ([{"a": (100.0, 0.0)}], {}),
        ([FIRST, {"a": (100.0, 0.0)}], GUESS),
        ([FIRST], {"a": (0.0,), "b": (0.0,)}),
    ],
)
def test_error_is_unknown_without_items_or_with_items_that_differ(runs, guess):
    assert standard_error(runs, guess) is None


def test_error_is_that_of_repeated_studies_and_rather_too_large():
    rng = np.random.default_rng(0)
    means, squares = [], []
    for _ in range(600):  # 3 seeds, 20 pictures of 3 questions each, none like those before
        seeds, pictures = rng.normal(0, 2, (3, 1, 1)), rng.normal(0, 10, (1, 20, 1))
        scores = (
            50 + seeds + pictures + rng.normal(0, 10, (1, 20, 3)) + rng.normal(0, 5, (3, 20, 3))
        )
        runs = [
            items_by_source((str(p), x / 100) for p in range(20) for x in run[p]) for run in scores
        ]
        means.append(np.mean([mean_item_score(run) for run in runs]))
        error = standard_error(runs, {})
        assert error is not None
        squares.append(error**2)
    assert 0.95 < np.mean(squares) / np.var(means) < 1.25


def rows_of(*values: tuple[str, float], **more: tuple[float, ...]) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{number}",
            "source_sha256": source,
            "score": score,
            **{name: one[number] for name, one in more.items()},
        }
        for number, (source, score) in enumerate(values)
    ]


def test_items_are_read_where_the_score_is_their_mean(tmp_path):
    write_items(tmp_path, rows_of(("b", 0.0), ("a", 1.0), ("b", 0.3), ("a", 0.5)))
    items, plain = ItemsReader().of_scores(tmp_path, 45.0)
    assert (items, plain) == ({"b": (0.0, 30.0), "a": (100.0, 50.0)}, True)
    assert [*items] == ["b", "a"]
    assert mean_item_score(items) == mean_item_score(dict(items)) == 45.0
    # Somebody's, of an average of averages.
    assert ItemsReader().of_scores(tmp_path, 60.0) == ({}, True)


def test_items_of_a_mean_over_parts_count_as_their_pseudo_values(tmp_path):
    rows = rows_of(("a", 0.0), ("b", 0.0), pseudo_value=(1.5, 0.0))
    expected = ({"a": (150.0,), "b": (0.0,)}, False)
    write_items(tmp_path, rows)
    assert ItemsReader().of_scores(tmp_path, 75.0) == expected
    (tmp_path / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert ItemsReader().of_guess(tmp_path, 75.0) == expected


def test_an_item_of_a_further_score_costs_little_more_than_its_score(tmp_path):
    num, reader = 20_000, ItemsReader()
    write_items(
        tmp_path, rows_of(*((hashlib.sha256(b"%d" % i).hexdigest(), 1.0) for i in range(num)))
    )
    kept = [reader.of_scores(tmp_path, 100.0)]
    tracemalloc.start()
    kept += [reader.of_scores(tmp_path, 100.0) for _ in range(5)]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(items[0] for items in kept)
    assert 8 * 5 * num <= size < 10 * 5 * num
