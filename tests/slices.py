"""A few cases of a matrix that is too long for every run, always the same ones; `night` has all."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

SEED = 7


def deep_slice(cases: Sequence[Any], number: int) -> list[Any]:
    """Returns all cases as parameters of a test; all but `number` drawn ones carry `night`.

        @pytest.mark.deep
        @pytest.mark.parametrize("end", deep_slice(["TERM", "INT", "KILL"], 1))

    `make test-deep` runs the drawn ones, `make night` all.
    """
    drawn = set(random.Random(SEED).sample(range(len(cases)), number))
    return [case if i in drawn else _at_night(case) for i, case in enumerate(cases)]


def day_slice(cases: Sequence[Any], chosen: Sequence[Any]) -> list[Any]:
    """Returns all cases as parameters of a test; all but the chosen ones carry `night`.

    For cases that differ in what they stand for: the methods of the paper, not every variant.
    """
    assert all(case in cases for case in chosen), chosen
    return [case if case in chosen else _at_night(case) for case in cases]


def _at_night(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.night)
