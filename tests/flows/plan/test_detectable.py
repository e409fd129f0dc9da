"""Which differences a plan says can be found, beside the formula of a normal variable."""

import math
import re

import pytest
from scipy import stats

from flows.plan.detectable import describe_detectable


def points_of(text: str) -> list[float]:
    """The numbers of points in the sentence, the smallest difference first."""
    return [float(number) for number in re.findall(r"([\d.]+) points \(", text)]


@pytest.mark.parametrize("num_rows", [1, 27])
def test_one_seed_is_a_test_of_items_alone(num_rows: int):
    items = dict.fromkeys((f"row{i}" for i in range(num_rows)), 400) | {"row0": 2500}
    level = stats.norm.ppf(1 - 0.05 / num_rows / 2) + stats.norm.ppf(0.8)
    expected = [level * 100 * math.sqrt(0.2 / num) for num in dict.fromkeys(items.values())]
    text = describe_detectable(items, num_rows, 1)
    assert points_of(text) == pytest.approx(sorted(expected), abs=0.05)
    assert "row0, 2,500 items" in text
    assert "deviate" not in text


def test_more_seeds_find_smaller_differences_down_to_those_of_items():
    few, many = (points_of(describe_detectable({"a": 50_000}, 1, num))[0] for num in (2, 50))
    items_alone = points_of(describe_detectable({"a": 50_000}, 1, 1))[0]
    assert few > many >= items_alone
    assert "seeds deviate by 0.3 points" in describe_detectable({"a": 50_000}, 1, 2)


def test_one_seed_speaks_of_its_trainings_alone_and_pretrainings_are_the_draws():
    items = {"a": 50_000}
    assert "for these trainings alone" in describe_detectable(items, 10, 1)
    assert "deviate" not in describe_detectable(items, 10, 1)
    nested = describe_detectable(items, 10, 3, num_pretrainings=3)
    assert "with 3 pretrainings" in nested
    # Three draws of which nothing else is known find less than nine that others tell of.
    assert points_of(nested)[0] > 1.5 * points_of(describe_detectable(items, 10, 9))[0]
