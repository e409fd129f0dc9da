"""The tokens of places and masks: their spelling, and what they mean."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.records.codes import (
    BOX,
    EXTRA_TOKENS,
    MASK,
    TOKEN,
    format_box,
    format_mask,
    numbers,
    parse_box,
)

fraction = st.floats(0, 1)


def test_the_tokens_are_paligemmas_in_its_order():
    assert len(EXTRA_TOKENS) == 1152
    assert [EXTRA_TOKENS[i] for i in (0, 1023, 1024, 1151)] == [
        "<loc0000>",
        "<loc1023>",
        "<seg000>",
        "<seg127>",
    ]
    assert all(re.fullmatch(TOKEN, token) for token in EXTRA_TOKENS)


def test_a_box_is_written_at_the_nearest_of_1024_places():
    assert format_box((0.1, 0.4, 0.5, 1.0)) == "<loc0102><loc0409><loc0512><loc1023>"
    assert parse_box("<loc0000><loc0341><loc0682><loc1023>") == (0, 341 / 1023, 682 / 1023, 1)


@given(st.tuples(fraction, fraction, fraction, fraction))
def test_a_box_comes_back_within_half_a_place(box: tuple[float, float, float, float]):
    text = format_box(box)
    assert re.fullmatch(BOX, text)
    assert parse_box(text) == pytest.approx(box, abs=0.5 / 1023 + 1e-12)
    assert format_box(parse_box(text)) == text


@given(st.lists(st.integers(0, 127), min_size=16, max_size=16))
def test_a_mask_comes_back(codes: list[int]):
    text = format_mask(codes)
    assert re.fullmatch(MASK, text)
    assert numbers(text) == codes
