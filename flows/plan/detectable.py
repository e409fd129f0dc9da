"""The differences between two methods that a study's seeds and items can find."""

from collections.abc import Mapping

from flows.report.interval import POWER
from flows.report.spread import LEVEL
from flows.report.variance import Variance

_SHARE = 0.2
"""Share of items that two methods are taken to answer differently [ours]."""

_SEEDS_DEVIATION = 0.3
"""Standard deviation of a method's scores over seeds [points]: the paper's median of 387 cells."""


def describe_detectable(items: Mapping[str, int], num_seeds: int) -> str:
    """Returns a sentence on the smallest differences that stand in 80 of 100 studies.

    Before a run nothing is known of how methods and seeds will differ: it says what is assumed. A
    table says the same of its own differences, from what was measured.

    Args:
      items: row of the results -> its number of items; at least one row.
      num_seeds: seeds of each method.
    """
    points = {name: _detectable(num, num_seeds, len(items)) for name, num in items.items()}
    order = sorted(points, key=lambda name: points[name])
    ends = " to ".join(
        f"{points[name]:.1f} points ({name}, {items[name]:,} items)"
        for name in dict.fromkeys((order[0], order[-1]))
    )
    seeds = f"{num_seeds} seed{'s' * (num_seeds != 1)}"
    deviation = f", and seeds deviate by {_SEEDS_DEVIATION} points" if num_seeds > 1 else ""
    return (
        f"with {seeds}, {POWER:.0%} of studies find differences of {ends}, corrected for "
        f"{len(items)} row{'s' * (len(items) != 1)}, if two methods answer {_SHARE:.0%} of the "
        f"items differently, a picture each{deviation}"
    )


def _detectable(num_items: int, num_seeds: int, num_rows: int) -> float:
    # Items count as if all seeds answered alike, since most of what is hard is so for every seed.
    parts = [Variance.known(_SHARE * 100**2 / num_items)]
    if num_seeds > 1:
        # Two methods; and a table learns how far seeds differ from all its trainings.
        variance = 2 * _SEEDS_DEVIATION**2 / num_seeds
        parts.append(Variance.estimated(variance, (num_seeds - 1) * num_rows))
    variance = Variance.sum_of(parts)
    return sum(variance.half_width(level) for level in (LEVEL / num_rows, 2 * (1 - POWER)))
