"""What counts as growing in a soak."""

import numpy as np
import pytest

from perf.soak import Trend, trends

HOUR = np.linspace(0, 3600, 120)


@pytest.mark.parametrize(
    ("values", "is_flat"),
    [
        (np.full(120, 31.0), True),
        (400 + 5 * np.sin(HOUR), True),  # Noise.
        (np.where(HOUR < 300, 100, 900), True),  # A start, within the first tenth.
        (900 + HOUR * 0.03, False),  # A file in each round.
        (np.linspace(300, 500, 120) + 5 * np.sin(HOUR), False),
    ],
)
def test_what_rises_after_the_first_tenth_grows(values: np.ndarray, is_flat: bool):
    assert Trend.of(HOUR.tolist(), values.tolist()).is_flat == is_flat


def test_what_comes_late_counts_as_none_before():
    rounds = [{"seconds": float(i), "a": 1.0} | ({"b": 5.0} if i > 50 else {}) for i in range(100)]
    found = trends(rounds)
    assert found["a"].is_flat
    assert not found["b"].is_flat
