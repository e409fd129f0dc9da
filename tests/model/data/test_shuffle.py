"""A permutation of every length, and the inverse of the very function that is computed."""

import numpy as np
import pytest

from model.data.order import Order
from model.data.shuffle import shuffled, unshuffled

LASTS = [
    *range(700, 720),
    2**16 - 1,
    2**16,
    2**16 + 1,
    2**17,
    2**18 - 1,
    10**6,
    2**31 - 1,
    2**33 + 5,
]
"""Of either side of each number of bits."""


@pytest.mark.parametrize("number", [4, 6, 8])
def test_numbers_come_back_from_where_grain_puts_them(number: int):
    rng = np.random.default_rng(number)
    lasts = np.array(LASTS)
    seeds = rng.integers(0, 2**32, len(lasts))
    numbers = rng.integers(0, lasts, endpoint=True)
    shuffles = zip(numbers.tolist(), LASTS, seeds.tolist(), strict=True)
    places = [shuffled(i, n, s) for i, n, s in shuffles]
    assert unshuffled(np.array(places), lasts, seeds).tolist() == numbers.tolist()


@pytest.mark.parametrize("last", [0, 1, 6])
def test_few_numbers_come_back_too(last: int):
    places = [shuffled(i, last, 3) for i in range(last + 1)]
    same = np.full(last + 1, last), np.full(last + 1, 3)
    assert unshuffled(np.array(places), *same).tolist() == list(range(last + 1))


@pytest.mark.parametrize("seed", [0, 3, 2**16, 2**16 + 1, 2**32 - 1])
def test_every_number_has_a_place_where_grain_leaves_one_out(seed: int):
    last = 2**16
    places = np.array([shuffled(i, last, seed) for i in range(last + 1)])
    assert np.array_equal(np.sort(places), np.arange(last + 1))
    # Of both ends, and of the number that changed places.
    some = np.array([0, 1, last - 1, last, int(np.flatnonzero(places == last)[0])])
    back = unshuffled(places[some], np.full(5, last), np.full(5, seed))
    assert back.tolist() == some.tolist()


def test_an_order_of_65537_records_visits_each_once_a_pass():
    order = Order(2**16 + 1, 2**10, seed=5)
    visited = sorted(order.position(visit) for visit in range(2**16 + 1))
    assert visited == list(range(2**16 + 1))
