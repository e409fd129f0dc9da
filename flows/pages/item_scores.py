"""Reads the items of a benchmark: answers and scores, for one column or two side by side."""

import dataclasses
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from flows.pages.run_results import Column
from flows.report.items_table import is_right
from flows.steps.registry import kind_of
from infra.store.store import Store
from model.eval.items_file import ItemsFile

ItemFilter = Literal["all", "right", "wrong", "changed"]
ITEM_FILTERS: tuple[ItemFilter, ...] = ("all", "right", "wrong", "changed")

_OPEN = 24
"""Number of scores artifacts whose items' scores stay in memory; 200,000 items take 20 MB."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoredItem:
    """One item of a benchmark.

    Attributes:
      id: id of its record.
      scores: score in each chosen column, the mean over its seeds [0-1].
    """

    id: str
    scores: tuple[float, ...]


class Reader:
    """Reader of items that caches their scores; safe to share between threads.

    Args:
      store: the store of the scores.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._scores = functools.lru_cache(maxsize=_OPEN)(self._read_scores)

    def file(self, key: str) -> ItemsFile:
        """Returns the items of a scores artifact.

        Raises:
          KeyError: if the artifact holds no scores, as cells of earlier versions do not.
        """
        artifact = self._store.get_cached(key)
        if kind_of(artifact.manifest).holds != "scores":
            raise KeyError(f"{key} is a cell of an earlier version; run the study again.")
        return ItemsFile(artifact.path)

    def _read_scores(self, key: str) -> Mapping[str, float]:
        """Returns id -> score [0-1] of every item, in order."""
        ids, scores = self.file(key).columns("id", "score")
        # Interned, since all files of one benchmark have the same ids.
        return dict(zip(map(sys.intern, ids), scores, strict=True))

    def items(self, columns: Sequence[Column], show: ItemFilter, find: str) -> list[ScoredItem]:
        """Returns the items that a list shows.

        Args:
          columns: one column, or the two that are compared.
          show: "all"; "right" or "wrong" for items that are so in the first column; "changed" for
            items right in one column and wrong in the other, the largest difference first.
          find: text that an item's id must contain; "" takes all items.
        """
        # Ids come from the first column; an item that the second one lacks counts as 0 there.
        scored = [self._means(column) for column in columns]
        wanted = find.casefold()
        found = [
            ScoredItem(id=item, scores=tuple(means.get(item, 0.0) for means in scored))
            for item in scored[0]
            if wanted in item.casefold()
        ]
        if show == "changed":
            found = [one for one in found if len(set(map(is_right, one.scores))) > 1]
            return sorted(found, key=lambda one: -abs(one.scores[0] - one.scores[-1]))
        if show == "all":
            return found
        return [one for one in found if is_right(one.scores[0]) == (show == "right")]

    def _means(self, column: Column) -> Mapping[str, float]:
        """Returns id -> mean score over the column's seeds."""
        seeds = [self._scores(key) for key in column.artifacts.values()]
        if len(seeds) == 1:
            return seeds[0]
        return {item: sum(s.get(item, 0.0) for s in seeds) / len(seeds) for item in seeds[0]}

    def rows(self, column: Column, item: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yields (seed, row) of each seed that answered an item."""
        for seed, key in column.artifacts.items():
            row = self.file(key).row(item)
            if row is not None:
                yield seed, row
