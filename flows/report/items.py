"""Scores of single items."""

import math
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
