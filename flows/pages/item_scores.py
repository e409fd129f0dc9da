"""Reads the items of a benchmark: answers and scores, for one column or two side by side."""

import dataclasses
import functools
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from flows.pages.run_results import Column
from flows.report.by_question_type import question_type
from flows.report.items_table import is_right
from flows.steps.registry import kind_of
from infra.store.store import Store
from model.eval.items_file import ItemsFile

ItemFilter = Literal["all", "right", "wrong", "changed", "only-a", "only-b"]
ITEM_FILTERS: tuple[ItemFilter, ...] = ("all", "right", "wrong", "changed", "only-a", "only-b")
OF_TWO = ITEM_FILTERS[3:]
"""Filters that compare two columns."""

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
        self._types = functools.lru_cache(maxsize=_OPEN)(self._read_types)

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

    def _read_types(self, key: str) -> Mapping[str, str]:
        """Returns id -> type of question of every item, in order."""
        ids, prefixes = self.file(key).columns("id", "prefix")
        types = (sys.intern(question_type(prefix)) for prefix in prefixes)
        return dict(zip(ids, types, strict=True))

    def types(self, column: Column) -> Mapping[str, str]:
        """Returns id -> type of question, as `question_type` tells it, of a column's items."""
        return self._types(next(iter(column.artifacts.values())))

    def items(
        self, columns: Sequence[Column], show: ItemFilter, find: str, asked: str = ""
    ) -> list[ScoredItem]:
        """Returns the items that a list shows.

        Args:
          columns: one column, or the two that are compared.
          show: "all"; "right" or "wrong" for items that are so in the first column; "only-a" or
            "only-b" for items right in that one of two columns and wrong in the other; "changed"
            for both of these, the largest difference first.
          find: text that an item's id, question, accepted answers or answers in these columns must
            contain; "" takes all items.
          asked: type of question that items must have; "" takes all.
        """
        # Ids come from the first column; an item that the second one lacks counts as 0 there.
        scored = [self._mean_score_by_item(column) for column in columns]
        types = self.types(columns[0]) if asked else {}
        wanted = self._containing(columns, find.casefold()) if find else scored[0]
        found = [
            ScoredItem(id=item, scores=tuple(means.get(item, 0.0) for means in scored))
            for item in scored[0]
            if item in wanted and (not asked or types[item] == asked)
        ]
        if show in OF_TWO:
            changed = [one for one in found if len(set(map(is_right, one.scores))) > 1]
            changed.sort(key=lambda one: -abs(one.scores[0] - one.scores[-1]))
            if show == "changed":
                return changed
            return [one for one in changed if is_right(one.scores[0]) == (show == "only-a")]
        if show == "all":
            return found
        return [one for one in found if is_right(one.scores[0]) == (show == "right")]

    def _containing(self, columns: Sequence[Column], text: str) -> Collection[str]:
        """Returns the ids of the items with a text in their id, question or answers."""
        found = set[str]()
        for key in (key for column in columns for key in column.artifacts.values()):
            rows = zip(
                *self.file(key).columns("id", "prefix", "prediction", "answers"), strict=True
            )
            for item, prefix, prediction, answers in rows:
                if any(text in each.casefold() for each in (item, prefix, prediction, *answers)):
                    found.add(item)
        return found

    def _mean_score_by_item(self, column: Column) -> Mapping[str, float]:
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
