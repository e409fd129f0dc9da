"""How certain it is that scores are above chance."""

import dataclasses
import math
from collections.abc import Sequence

from scipy import special

from flows.report.cells import NUM_ERRORS
from flows.report.interval import estimate_intervals
from flows.report.items import Items, mean_item_score
from flows.report.paired_scores import PairedScores


def margin_errors(
    rows: Sequence[PairedScores],
    guesses: Sequence[tuple[float | None, Items]],
    pretrainings: Sequence[Sequence[int]],
) -> list[float | None]:
    """Returns the standard error of each benchmark's margin over chance.

    It is the one with which a normal variable has the margin's interval at three standard errors,
    99.73 %, over seeds and items as every interval. So few seeds or pictures make it larger, and a
    cell of no skill counts as above chance in one of 740 cases.

    Args:
      rows: scores on each benchmark.
      guesses: for each, the score of the blind guess, and its items; these are empty where only the
        score is known, which is then taken as exact.
      pretrainings: for each, number of the pretraining that each of its seeds starts from.

    Returns:
      The errors; None where the score of the guess is unknown, or the items are, differ from those
      of the guess or are about a single source.
    """
    margins = {}
    for place, (row, (chance, items)) in enumerate(zip(rows, guesses, strict=True)):
        if items:
            # What is easy for the guess, too, cancels.
            num, within = row.num_seeds, math.isfinite(row.high)
            guess = PairedScores.of(
                [mean_item_score(items)] * num, [items] * num, is_percentage=within
            )
            margin = row.minus(guess)
        elif chance is not None:
            margin = dataclasses.replace(row, values=row.values - chance, low=-row.high)
        else:
            continue
        if margin.sources:
            # No exact test of two methods: the guess may be a mean over answers.
            margins[place] = dataclasses.replace(margin, is_binary=False)
    intervals = estimate_intervals(
        list(margins.values()),
        [pretrainings[place] for place in margins],
        level=2 * float(special.ndtr(-NUM_ERRORS)),
    )
    errors: list[float | None] = [None] * len(rows)
    for place, interval in zip(margins, intervals, strict=True):
        if interval.low is not None:
            errors[place] = (interval.mean - interval.low) / NUM_ERRORS
    return errors
