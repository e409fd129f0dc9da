"""The order of visits: every record once a pass, few blocks at a time."""

import itertools

import grain
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.data.order import Order, lanes_of


@pytest.mark.slow
@given(
    length=st.integers(1, 60),
    block=st.integers(1, 9),
    window_blocks=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=20)
def test_every_pass_visits_every_record_once(length, block, window_blocks, seed):
    order = Order(length, block, seed, window_blocks=window_blocks)
    for number in range(2):
        visits = range(number * length, (number + 1) * length)
        assert sorted(map(order.position, visits)) == list(range(length))


@pytest.mark.slow
def test_few_blocks_are_read_at_a_time_and_each_once():
    length, block = 10_007, 10
    order = Order(length, block, 3, window_blocks=20)
    visits = [order.position(i) for i in range(length)]
    last_seen = {position // block: at for at, position in enumerate(visits)}
    first_seen = {position // block: at for at, position in reversed(list(enumerate(visits)))}
    open_at = [
        sum(first_seen[b] <= at <= last_seen[b] for b in first_seen) for at in range(0, length, 97)
    ]
    assert max(open_at) <= 21  # A window may begin and end within a block.
    assert sum(abs(a - b) == 1 for a, b in itertools.pairwise(visits)) < length / 20


@pytest.mark.slow
def test_a_part_of_one_window_is_shuffled_as_a_whole():
    order = Order(700, 30, 3)
    whole = grain.MapDataset.range(700).seed(3).shuffle().repeat(3)
    assert [order.position(i) for i in range(2100)] == list(whole)


@pytest.mark.parametrize(
    ("length", "block", "lanes", "window_blocks"),
    [(5, 8, 1, 128), (10, 3, 1, 2), (100, 7, 4, 3), (997, 13, 8, 40)],
)
def test_counts_of_visits_are_those_of_the_visits(length, block, lanes, window_blocks):
    order = Order(length, block, 5, lanes=lanes, window_blocks=window_blocks)
    for num_visits in (0, 1, length // 3, length, length + 1, 2 * length + length // 2):
        visits = [order.position(visit) for visit in range(num_visits)]
        counts = [visits.count(position) for position in range(length)]
        assert order.visit_counts(num_visits).tolist() == counts


@pytest.mark.parametrize("length", [100, 1000])
def test_passes_and_seeds_differ(length: int):
    def first(seed: int, number: int) -> list[int]:
        order = Order(length, 10, seed, window_blocks=20)
        return [order.position(number * length + i) for i in range(50)]

    assert len({tuple(first(seed, number)) for seed in (0, 1) for number in (0, 1)}) == 4


@pytest.mark.slow
@given(
    length=st.integers(1, 90),
    block=st.integers(1, 7),
    lanes=st.sampled_from([1, 2, 4, 8]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=15)
def test_lanes_visit_every_record_once_a_pass(length, block, lanes, seed):
    order = Order(length, block, seed, lanes=lanes, window_blocks=3)
    for number in range(2):
        visits = range(number * length, (number + 1) * length)
        assert sorted(map(order.position, visits)) == list(range(length))


@pytest.mark.slow
@given(
    length=st.integers(800, 3000),
    block=st.integers(5, 9),
    window_blocks=st.sampled_from([70, 90, 999]),
    lanes=st.sampled_from([1, 2, 4, 8]),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
@settings(max_examples=6)
def test_visits_to_a_record_are_those_whose_position_it_is(
    length, block, window_blocks, lanes, seed, data
):
    order = Order(length, block, seed, lanes=lanes, window_blocks=window_blocks)
    position = data.draw(st.integers(0, length - 1) | st.just(length - 1))
    visits = list(itertools.islice(order.visits(position), 40))
    assert [visit // length for visit in visits] == list(range(40))
    assert {order.position(visit) for visit in visits} == {position}


@pytest.mark.slow
def test_each_lane_reads_blocks_of_its_own():
    length, block, lanes = 9_000, 10, 4
    order = Order(length, block, 3, lanes=lanes, window_blocks=8)
    read = [
        {order.position(visit) // block for visit in range(lane, length, lanes)}
        for lane in range(lanes)
    ]
    shared = [read[a] & read[b] for a, b in itertools.combinations(range(lanes), 2)]
    assert sum(map(len, shared)) <= lanes  # Where one lane's stretch ends within a block.
    assert sum(map(len, read)) <= length // block + lanes


@pytest.mark.parametrize(
    ("batch_size", "lanes"), [(1, 1), (16, 1), (63, 1), (64, 2), (96, 2), (8192, 256), (8190, 2)]
)
def test_lanes_divide_the_batch_and_have_enough_of_it(batch_size: int, lanes: int):
    assert lanes_of(batch_size) == lanes
