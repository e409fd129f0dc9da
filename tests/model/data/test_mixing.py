"""Mixing: exact shares of any first examples, every example of a stream in turn."""

import collections

import grain
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.data.mixing import Mixture

WEIGHTS = st.lists(st.integers(1, 10**7) | st.floats(0.01, 1e6), min_size=1, max_size=8)


@given(weights=WEIGHTS, start=st.integers(0, 10**12))
def test_shares_are_the_weights_at_any_moment(weights: list[float], start: int):
    mixture = Mixture(dict(enumerate(weights)))
    total, taken = sum(weights), collections.Counter[int]()
    first = {}
    for number in range(start, start + 300):
        name, index = mixture[number]
        # Its number in its stream tells how many of the stream came before, since ever.
        assert abs(index - number * weights[name] / total) < len(weights) + 1e-9 * number
        assert index == first.setdefault(name, index) + taken[name]
        taken[name] += 1


@given(weights=WEIGHTS, number=st.integers(0, 10**12))
def test_the_number_of_an_example_is_found_from_its_stream(weights: list[float], number: int):
    mixture = Mixture(dict(enumerate(weights)))
    assert mixture.number(*mixture[number]) == number


@pytest.mark.slow
def test_rounded_weights_would_drift():
    counts = collections.Counter(Mixture({"a": 1.999, "b": 1.0})[n][0] for n in range(29_990))
    assert counts == {"a": 19_990, "b": 10_000}


@pytest.mark.parametrize("weights", [(2.0, 1.0, 1.0), (1.0, 0.5, 6.0), (7.0, 4.0)])
def test_the_order_is_grains_where_that_keeps_the_weights(weights: tuple[float, ...]):
    streams = [
        grain.MapDataset.range(10**6).map_with_index(lambda _, i, n=n: (n, i))
        for n in range(len(weights))
    ]
    theirs = grain.MapDataset.mix(streams, weights)
    ours = Mixture(dict(enumerate(weights)))
    assert [ours[i] for i in range(500)] == [theirs[i] for i in range(500)]
