"""The spread of scores over a few seeds, and the level at which differences are called."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

LEVEL = 0.05
"""Share of intervals that may miss the truth, and largest p-value of a significant difference."""

NO_VARIANCE = 1e-20
"""Variance of scores within 0-100 up to which they are the same, but for their rounding."""


def summarize_scores(values: Sequence[float]) -> dict[str, Any]:
    """Returns `mean`, `std` (ddof=1) and `n` of some scores.

    The mean is None without values; std is None below two. The mean is computed exactly and then
    rounded, so the order of the values does not matter.
    """
    if not values:
        return {"mean": None, "std": None, "n": 0}
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.mean(values), "std": std, "n": len(values)}


def t_interval(mean: float, std: float | None, num: int) -> tuple[float, float] | None:
    """Returns the two-sided 95 % Student t interval of a mean; None for fewer than two values.

    It covers the spread between seeds only, not that between the evaluation's items. It is not
    clipped to the metric's range: with 3 seeds it reaches 2.48 standard deviations each way.
    """
    if std is None or num < 2:
        return None
    from scipy.special import stdtrit  # NumPy comes with it: tables alone do without.

    half = float(stdtrit(num - 1, 1 - LEVEL / 2)) * std / math.sqrt(num)
    return mean - half, mean + half


def holm_correction(chances: Mapping[str, float]) -> dict[str, float]:
    """Returns the p-values by name, corrected for their number.

    If every corrected p-value up to 5 % is called a difference, at most 5 % of studies call any
    difference wrongly. Source: Holm, Scandinavian Journal of Statistics 6(2), 1979.
    """
    # Three p-values: 0.01, 0.02, 0.04 become 3 · 0.01, 2 · 0.02, 1 · 0.04, each at least as large
    # as the one before it.
    corrected, least = {}, 0.0
    for rank, name in enumerate(sorted(chances, key=lambda name: chances[name])):
        least = max(least, min(1.0, (len(chances) - rank) * chances[name]))
        corrected[name] = least
    return corrected
