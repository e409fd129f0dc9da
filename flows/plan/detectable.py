"""The differences between two methods that a study's seeds and items can find."""

from collections.abc import Mapping

from flows.report.interval import POWER, detectable_effect
from flows.report.text_lists import counted
from flows.report.variance import Variance

_DISAGREEMENT = 0.2
"""Share of items that two methods are taken to answer differently [ours]."""

_DEVIATION = 0.3
"""Standard deviation of a method's scores over seeds [points]: the paper's median of 387 cells."""


def describe_detectable(
    items: Mapping[str, int], num_rows: int, num_seeds: int, num_pretrainings: int = 1
) -> str:
    """Returns a sentence on the smallest differences that stand in 80 of 100 studies.

    Before a run nothing is known of how methods and seeds will differ: it says what is assumed. A
    table says the same of its own differences, from what was measured.

    Args:
      items: row of the results, scored as right or wrong or nearly so -> its number of items.
      num_rows: number of all rows, which differences are corrected for.
      num_seeds: seeds of each method, of each pretraining.
      num_pretrainings: pretrainings of each method.
    """
    points = {
        name: _detectable_difference(num, num_rows, num_seeds, num_pretrainings)
        for name, num in items.items()
    }
    order = sorted(points, key=lambda name: points[name])
    ends = " to ".join(
        f"{points[name]:.1f} points ({name}, {items[name]:,} items)"
        for name in dict.fromkeys((order[0], order[-1]))
    )
    draws = counted(num_seeds, "seed")
    if num_pretrainings > 1:
        draws = counted(num_pretrainings, "pretraining")
        deviation = f"and these deviate by {_DEVIATION} points"
    elif num_seeds > 1:
        deviation = f"and seeds deviate by {_DEVIATION} points"
    else:
        deviation = "for these trainings alone: how far other seeds would differ it cannot tell"
    return (
        f"with {draws}, {POWER:.0%} of studies find differences of {ends}, corrected for "
        f"{counted(num_rows, 'row')}, if two methods answer {_DISAGREEMENT:.0%} of the items "
        f"differently, each item has a picture of its own (shared ones find less), {deviation}"
    )


def _detectable_difference(
    num_items: int, num_rows: int, num_seeds: int, num_pretrainings: int
) -> float:
    # Items count as if all seeds answered alike, since most of what is hard is so for every seed.
    parts = [Variance.known(_DISAGREEMENT * 100**2 / num_items)]
    # The difference of two methods, over independent draws. A table learns how far seeds differ
    # from all its trainings; a pretraining moves all rows at once, and there is none to learn from.
    if num_pretrainings > 1:
        of_pretrainings = 2 * _DEVIATION**2 / num_pretrainings
        parts.append(Variance.estimated(of_pretrainings, num_pretrainings - 1))
    elif num_seeds > 1:
        of_seeds = 2 * _DEVIATION**2 / num_seeds
        parts.append(Variance.estimated(of_seeds, (num_seeds - 1) * num_rows))
    return detectable_effect(Variance.sum_of(parts).half_width, num_rows)
