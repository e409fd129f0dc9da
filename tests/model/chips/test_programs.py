"""Tests that libtpu's errors tell how much memory a program that is too large asks for."""

import pytest

from infra.chips.topology import GIB
from model.chips.programs import parse_needed_bytes


@pytest.mark.parametrize(
    ("error", "gib"),
    [
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory "
            "space hbm. Used 33.53G of 30.75G hbm. Exceeded hbm capacity by 2.78G.",
            33.53,
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (54.80G) exceeds available HBM (30.75G).",
            54.80,
        ),
    ],
)
def test_what_it_asks_for_is_known(error: str, gib: float):
    assert parse_needed_bytes(error) == pytest.approx(gib * GIB)


def test_another_error_is_none_of_these():
    assert parse_needed_bytes("INVALID_ARGUMENT: Error: unexpected worker hostname") is None
