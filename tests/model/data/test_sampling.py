"""Which suffix a visit trains on."""

import dataclasses
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.data.config import BatchConfig
from model.data.loader import samples_of_step
from model.data.sampling import choose_texts
from model.seeds import Seeds
from pipelines.records.schema import SuffixSampling
from tests.model.tiny_data import color_record, write_dataset

ONE = Seeds.of(1)


def several(number: int, count: int):
    return dataclasses.replace(color_record(number), suffixes=tuple(map(str, range(count))))


def walk(record, seed: int, visits: int, how: SuffixSampling = "without_replacement") -> list[str]:
    return [suffix for _, suffix in pairs(record, seed, visits, how)]


def pairs(record, seed: int, visits: int, how: SuffixSampling = "without_replacement"):
    drawn = [choose_texts(record, how, seed=seed, visit=v, number=v) for v in range(visits)]
    return [(prefix, record.suffixes[chosen]) for prefix, chosen in drawn]


@given(seed=st.integers(0, 2**64), count=st.integers(1, 20), passes=st.integers(1, 4))
def test_every_suffix_is_drawn_once_before_any_again(seed: int, count: int, passes: int):
    record = several(0, count)
    drawn = walk(record, seed, count * passes)
    for start in range(0, len(drawn), count):
        assert sorted(drawn[start : start + count]) == sorted(record.suffixes)


def test_orders_differ_between_passes_records_and_seeds():
    orders = [walk(several(n, 9), seed, 18) for n in range(2) for seed in range(2)]
    found = {tuple(order[start : start + 9]) for order in orders for start in (0, 9)}
    assert len(found) == 8


@pytest.mark.parametrize("how", ["choice", "uniform"])
def test_independent_draws_are_uniform(how: SuffixSampling):
    drawn = walk(several(0, 3), 5, 3000, how)
    assert drawn == walk(several(0, 3), 5, 3000, how)
    assert all(count == pytest.approx(1000, abs=110) for count in Counter(drawn).values())
    assert any(len(set(drawn[start : start + 3])) < 3 for start in range(0, 60, 3))


def test_objects_are_walked_and_any_of_their_expressions_is_read():
    expressions = (("left dog", "the small one", "a dog"), ("cat",), ("tree", "the oak"))
    record = dataclasses.replace(several(0, 3), prefixes=expressions)
    drawn = pairs(record, 1, 900)
    for start in range(0, 900, 3):
        assert sorted(suffix for _, suffix in drawn[start : start + 3]) == ["0", "1", "2"]
    counts = Counter(drawn)
    assert {prefix for prefix, suffix in counts if suffix == "0"} == set(expressions[0])
    assert counts["cat", "1"] == 300
    assert all(counts[prefix, "0"] == pytest.approx(100, abs=30) for prefix in expressions[0])
    assert drawn == pairs(record, 1, 900)
    assert drawn != pairs(record, 2, 900)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    parts = {"a": [several(i, 3) for i in range(4)], "b": [several(i, 2) for i in range(4, 9)]}
    return write_dataset(tmp_path_factory.mktemp("data") / "d", parts)


def test_a_run_draws_every_suffix_of_every_record_equally_often(data: str):
    train = BatchConfig(batch_size=9)  # Parts have their share: a pass over one is one over all.
    seen = [sample for step in range(6) for sample in samples_of_step(data, train, ONE, step)]
    assert all(n == 2 for (i, *_), n in Counter(seen).items() if i < "color/004")
    assert all(n == 3 for (i, *_), n in Counter(seen).items() if i >= "color/004")
    assert seen != [s for step in range(6) for s in samples_of_step(data, train, Seeds.of(2), step)]


def test_a_late_step_draws_what_an_undisturbed_run_does(data: str):
    one, five = BatchConfig(batch_size=9), BatchConfig(batch_size=45)
    whole = samples_of_step(data, five, ONE, 2)
    assert whole == [s for step in range(10, 15) for s in samples_of_step(data, one, ONE, step)]


def test_a_record_without_suffix_is_an_error(tmp_path: Path):
    record = dataclasses.replace(color_record(0), suffixes=())
    with pytest.raises(ValueError, match="'color/000' has no suffix"):
        walk(record, 0, 1)
