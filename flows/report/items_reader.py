"""Reads the items of scores, in little memory: a study may have 80 million of them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from flows.report.items import Items, guess_rows, mean_item_score
from model.eval.items_file import ItemsFile


class Sources:
    """The sources of some items, which all scores of a benchmark share.

    Args:
      of_items: source of each item, in the order of the items' ids.
    """

    def __init__(self, of_items: Sequence[str]) -> None:
        # Of items whose sources are b a b c, in the order in which sources first appear:
        #
        #   place     {b: 0, a: 1, c: 2}
        #   order     0 2 1 3      positions of the items, source after source
        #   starts    0 2 3 4      where each source begins in `order`, and the end
        self.place: dict[str, int] = {}
        places = [self.place.setdefault(source, len(self.place)) for source in of_items]
        self.order: Int[np.ndarray, " N"] = np.argsort(places, kind="stable")
        counts = np.bincount(places, minlength=len(self.place))
        self.starts: Int[np.ndarray, " C+1"] = np.concatenate([[0], np.cumsum(counts)])


class ItemArray(Mapping[str, tuple[float, ...]]):
    """Items of which only the scores are its own, 8 bytes each."""

    def __init__(self, sources: Sources, scores: Float[np.ndarray, " N"]) -> None:
        self._sources = sources
        self._scores = 100 * scores[sources.order]

    def __getitem__(self, source: str) -> tuple[float, ...]:
        place, starts = self._sources.place[source], self._sources.starts
        return tuple(self._scores[starts[place] : starts[place + 1]].tolist())

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources.place)

    def __len__(self) -> int:
        return len(self._sources.place)


class ItemsReader:
    """Reads the items of many scores; those of the same questions share their sources."""

    def __init__(self) -> None:
        self._sources: dict[tuple[str, ...], Sources] = {}

    def of_scores(self, folder: Path, score: float) -> tuple[Items, bool]:
        """Returns the items of a `scores` artifact, and whether their values are their own scores.

        If `score` is not the plain mean of the items' scores, as with a mean over languages, the
        values are the pseudo-values of `model.eval.scorer`. The items are empty if the mean of the
        values is not `score`.
        """
        # A score such as a mean over languages is no mean of its items. Their pseudo-values then
        # have the score as their mean, so that intervals work as for any other.
        file = ItemsFile(folder)
        plain = not file.has_pseudo_values
        sources, values = file.columns("source_sha256", "score" if plain else "pseudo_value")
        return self._score_items_from_values(sources, values, score, plain=plain)

    def of_guess(self, folder: Path, score: float) -> tuple[Items, bool]:
        """Returns the items of a `chance` artifact, as `of_scores` does."""
        rows = guess_rows(folder, ("source_sha256", "score", "pseudo_value"))
        sources, scores, pseudo_values = zip(*rows, strict=True) if rows else ((), (), ())
        plain = None in pseudo_values or not rows
        return self._score_items_from_values(
            sources, scores if plain else pseudo_values, score, plain=plain
        )

    def _score_items_from_values(
        self, sources: Sequence[str], values: Sequence[float], score: float, *, plain: bool
    ) -> tuple[Items, bool]:
        key = tuple(sources)
        if not key:
            return {}, plain
        if key not in self._sources:
            self._sources[key] = Sources(key)
        items = ItemArray(self._sources[key], np.array(values, np.float64))
        tolerance = 1e-6 if plain else 1e-3
        is_mean = math.isclose(mean_item_score(items), score, abs_tol=tolerance)
        return (items if is_mean else {}), plain
