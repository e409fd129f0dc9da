"""Reads the items of a benchmark: answers and scores, for one column or two side by side."""

import dataclasses
import functools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from flows.pages.study import Column
from infra.store.store import Artifact, Store
from model.files import PREDICTIONS

Show = Literal["all", "right", "wrong", "changed"]
SHOWS: tuple[Show, ...] = ("all", "right", "wrong", "changed")

_RIGHT = 0.5
"""Smallest score of a right item, the mean over seeds [0-1]."""


_OPEN = 24
"""Number of predictions files whose scores stay in memory; 200,000 items take 20 MB."""


class Answers:
    """The rows of one file of predictions, sorted by id; a row is found by bisection in the file.

    Attributes:
      key: key of the predictions artifact.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.key = artifact.key
        self._path: Path = artifact.path / PREDICTIONS

    def scores(self) -> Mapping[str, float]:
        """Returns id -> score [0-1] of every row, in order."""
        with self._path.open("rb") as file:
            rows = map(json.loads, file)
            # Interned, since all files of one benchmark have the same ids.
            return {sys.intern(row["id"]): row["score"] for row in rows}

    def spread(self, limit: int) -> Iterator[Mapping[str, Any]]:
        """Yields up to `limit` rows spread over the file; other rows are not read."""
        # The same jumps, at even distances; `end` keeps a long row from being yielded twice.
        size, end = self._path.stat().st_size, 0
        with self._path.open("rb") as file:
            for number in range(limit):
                file.seek(max(end, size * number // limit))
                if file.tell() > end:
                    file.readline()  # Skips the rest of a row.
                if line := file.readline():
                    yield json.loads(line)
                end = file.tell()

    def row(self, item: str) -> Mapping[str, Any] | None:
        """Returns an item's row; None if there is none."""
        with self._path.open("rb") as file:
            # Rows are lines of different lengths, so the bisection is over bytes: a jump lands
            # somewhere in a row, and the next row that begins is compared.
            #
            #   {"id": "a1", …}⏎{"id": "b7", …}⏎{"id": "c2", …}⏎
            #                          ↑ middle   ↑ compared
            first, end = 0, self._path.stat().st_size
            while first < end:  # The row, if any, begins at an offset in [first, end).
                middle = (first + end) // 2
                file.seek(max(middle - 1, 0))
                if middle:
                    file.readline()  # Moves to the first row that begins at `middle` or later.
                begin = file.tell()
                if begin >= end:
                    end = middle
                    continue
                row = json.loads(file.readline())
                if row["id"] == item:
                    return row
                if row["id"] < item:
                    first = file.tell()
                else:
                    end = middle
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """One item of a benchmark.

    Attributes:
      id: id of its record.
      scores: score in each chosen column, the mean over its seeds [0-1].
    """

    id: str
    scores: tuple[float, ...]


class Reader:
    """Reader of predictions files that caches their scores; safe to share between threads.

    Args:
      store: the store of the predictions.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._scores = functools.lru_cache(maxsize=_OPEN)(lambda key: self.answers(key).scores())

    def answers(self, key: str) -> Answers:
        """Returns the answers of a predictions artifact."""
        return Answers(self._store.get_cached(key))

    def items(self, columns: Sequence[Column], show: Show, find: str) -> list[Item]:
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
            Item(id=item, scores=tuple(means.get(item, 0.0) for means in scored))
            for item in scored[0]
            if wanted in item.casefold()
        ]
        if show == "changed":
            found = [one for one in found if len({score >= _RIGHT for score in one.scores}) > 1]
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

    def told(self, column: Column, item: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yields (seed, row) of each seed that answered an item."""
        for seed, key in column.artifacts.items():
            row = self.answers(key).row(item)
            if row is not None:
                yield seed, row


def is_right(score: float) -> bool:
    """Returns whether pages count a score in 0-1 as right."""
    return score >= _RIGHT
