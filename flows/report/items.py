"""Scores of single items, and the standard error of their mean over items and seeds."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from infra.typed_json import parse_typed, typed
from model.files import PREDICTIONS

Items = Mapping[str, tuple[float, ...]]
"""Source -> the scores (0-100) of the items that are asked about it, in the order of their ids.

A source is the picture or video that items share. Items of one source are correlated, so the
independent draws are the sources, not the items (Miller, arXiv:2411.00640, sec. 2.2).
"""

NUM_ERRORS = 3.0
"""Number of standard errors by which a mean must exceed chance to count as above it."""


_NUMBERS = ("score", "pseudo_value")
"""Fields of a guess's row that are numbers; all others are texts."""


def is_percentage(metric: str) -> bool:
    """Returns whether scores in a metric stay within 0-100."""
    return metric != "cider"


def guess_rows(folder: Path, names: Sequence[str]) -> list[tuple]:
    """Returns some fields of each row of a `chance` artifact; None where a row lacks one.

    Raises:
      ValueError: if a row is none, or a field of it has another kind of value.
    """
    path, rows = folder / PREDICTIONS, []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            at = f"{path} line {number}"
            row = parse_typed(dict[str, Any], line, at)
            kinds = {name: float if name in _NUMBERS else str for name in names}
            rows.append(tuple(typed(kinds[n] | None, row.get(n), f"{at}: {n}") for n in names))
    return rows


def items_by_source(rows: Iterable[tuple[str, float]]) -> Items:
    """Returns the items of (source, score in 0-1) pairs that are in the order of the items' ids."""
    scores_of: dict[str, list[float]] = {}
    for source, score in rows:
        scores_of.setdefault(source, []).append(100 * score)
    return {source: tuple(scores) for source, scores in scores_of.items()}


def mean_item_score(items: Items) -> float:
    """Returns the plain mean over all items, 0-100."""
    return math.fsum(score for scores in items.values() for score in scores) / num_items(items)


def without_sources(items: Items, sources: Set[str]) -> Items:
    """Returns the items whose source is not one of `sources`."""
    return {source: scores for source, scores in items.items() if source not in sources}


def num_items(items: Items) -> int:
    """Returns the number of items, over all sources."""
    return sum(map(len, items.values()))


def standard_error(runs: Sequence[Items], guess: Items) -> float | None:
    """Returns the standard error of (mean of `runs` - mean of `guess`) over seeds and sources.

    ```
    variance = spread of the seeds' means / S  +  spread of the sources' sums of differences / N^2
    ```
    The first part uses the sample variance of the S means; it is 0 for one seed. The second is the
    variance of a clustered mean. An item's difference is its score, averaged over seeds, less the
    guess's, so an item that is easy for both cancels. Noise of a single (seed, item) pair counts in
    both parts, so the error is rather too large than too small.

    Args:
      runs: items of each seed.
      guess: items of the guess to compare with; empty if only its mean is known.

    Returns:
      The standard error, or None if the items are unknown, differ between runs (or from the
      guess's), or come from a single source.
    """
    # Runs are comparable item by item only if they answered the same items: same sources, and as
    # many items of each.
    counts = [{source: len(scores) for source, scores in items.items()} for items in (*runs, guess)]
    run_counts, guess_counts = counts[:-1], counts[-1]
    if (
        not run_counts
        or len(run_counts[0]) < 2
        or any(other != run_counts[0] for other in run_counts[1:])
    ):
        return None
    if guess and guess_counts != run_counts[0]:
        return None
    num, num_sources = sum(run_counts[0].values()), len(run_counts[0])
    # By source: its items' scores, averaged over seeds, less the guess's. Items of one picture
    # stay together, since they are right or wrong together.
    sums = [
        math.fsum(score for run in runs for score in run[source]) / len(runs)
        - math.fsum(guess.get(source, ()))
        for source in run_counts[0]
    ]
    # How far a source's sum is from what its number of items would give at the mean.
    mean = math.fsum(sums) / num
    deviations = [
        total - count * mean for total, count in zip(sums, run_counts[0].values(), strict=True)
    ]
    over_sources = math.fsum(d * d for d in deviations) * num_sources / (num_sources - 1) / num**2
    means = [mean_item_score(run) for run in runs]
    over_seeds = statistics.variance(means) / len(means) if len(means) > 1 else 0.0
    return math.sqrt(over_seeds + over_sources)
