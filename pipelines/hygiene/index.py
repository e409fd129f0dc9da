"""Search for the pictures that look like a given one.

Candidates are found by a dot product of coarse vectors and then aligned. If their fingerprints
agree, the pixels decide.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np

from pipelines.hygiene.alignment import align_fingerprints
from pipelines.hygiene.detail import FineEdges
from pipelines.hygiene.fingerprint import FULL_AXIS, SHAPE, WINDOWS, Axis, coarse_vectors

MIN_LIKENESS = 0.3
"""Likeness from which two pictures count as the same; see `perf/hygiene.py` for the recall."""

_MIN_COARSE, _MIN_ALIGNED = 0.55, 0.5
"""Least coarse agreement of candidates that are aligned, and least aligned agreement of those whose
pixels are read. 90 to 100 % of planted duplicates pass both, depending on picture and change."""

_BATCH = 256
"""Queries compared at a time; the product with 100,000 pictures then takes 0.1 GB per window."""


@dataclasses.dataclass(frozen=True)
class SimilarPicture:
    """A picture that looks like the query: its row, and the likeness, up to 1."""

    row: int
    likeness: float


class PictureIndex:
    """Index of fingerprints; about 16 kB of memory each.

    Args:
      prints: fingerprints, one per row.
      image: function that reads the encoded picture of a row.
      candidates: most rows that are aligned with a query.
    """

    def __init__(
        self, prints: list[np.ndarray], image: Callable[[int], bytes], *, candidates: int = 8
    ) -> None:
        self._prints = np.stack(prints) if prints else np.zeros((0, *SHAPE), dtype=np.int8)
        parts = [
            coarse_vectors(self._prints[start : start + _BATCH])
            for start in range(0, len(prints), _BATCH)
        ]
        self._vectors = np.concatenate(parts, axis=1) if parts else None
        self._image, self._candidates = image, candidates

    def search(
        self,
        prints: list[np.ndarray],
        image: Callable[[int], bytes],
        *,
        min_likeness: float = MIN_LIKENESS,
        row_limits: list[int] | None = None,
    ) -> list[list[SimilarPicture]]:
        """Returns, for each query, the pictures that look like it, the most alike first.

        Args:
          prints: fingerprints of the queries.
          image: function that reads the encoded picture of a query.
          min_likeness: least likeness of the returned pictures.
          row_limits: for each query, the row before which the search ends; None searches all rows.
        """
        # In batches, so that the product of queries and pictures stays small.
        results: list[list[SimilarPicture]] = []
        for start in range(0, len(prints), _BATCH):
            batch = np.stack(prints[start : start + _BATCH])
            limits = None if row_limits is None else row_limits[start : start + _BATCH]
            for query, rows in zip(batch, self._shortlist_pictures(batch, limits), strict=True):
                neighbours = self._compare_candidates(
                    query, rows, functools.partial(image, len(results))
                )
                similar = [picture for picture in neighbours if picture.likeness >= min_likeness]
                results.append(
                    sorted(similar, key=lambda picture: (-picture.likeness, picture.row))
                )
        return results

    def _compare_candidates(
        self,
        query: np.ndarray,
        rows: list[tuple[int, tuple[Axis, Axis]]],
        image: Callable[[], bytes],
    ) -> Iterator[SimilarPicture]:
        detail: FineEdges | None = None
        for row, crop in rows:
            aligned, fitted = align_fingerprints(query, self._prints[row], crop)
            if aligned < _MIN_ALIGNED:
                continue
            # The pixels of the query are read at most once, and only if a fingerprint agrees.
            detail = detail or FineEdges(image())
            yield SimilarPicture(row, detail.likeness(FineEdges(self._image(row)), fitted))

    def _shortlist_pictures(
        self, batch: np.ndarray, limits: list[int] | None
    ) -> list[list[tuple[int, tuple[Axis, Axis]]]]:
        """Returns, for each query, the rows to align, each with the crop that fits best."""
        if self._vectors is None:
            return [[] for _ in batch]
        # Agreement of each query (row of `best`) with each picture (column) at the best window:
        # window 0 compares whole pictures, each other one a crop of 90 % of both sides.
        queries = coarse_vectors(batch)
        best = queries[0] @ self._vectors[0].T
        crop = np.zeros(best.shape, dtype=np.int8)
        for window in range(1, len(WINDOWS)):
            # Sign 1: the query is a crop of the row. Sign -1: the row is a crop of the query.
            for sign, scores in (
                (1, queries[0] @ self._vectors[window].T),
                (-1, queries[window] @ self._vectors[0].T),
            ):
                better = scores > best
                best[better], crop[better] = scores[better], sign * window
        if limits is not None:
            # Pictures at or after a query's limit are no candidates: -1 is below every threshold.
            best[np.arange(best.shape[1]) >= np.asarray(limits)[:, None]] = -1
        # Only the best few are aligned, which takes far longer than the dot product.
        keep = min(self._candidates, best.shape[1])
        order = np.argpartition(-best, keep - 1, axis=1)[:, :keep]
        return [
            [
                (int(r), _window_crop(int(crop[q, r])))
                for r in sorted(rows)
                if best[q, r] >= _MIN_COARSE
            ]
            for q, rows in enumerate(order)
        ]


def _window_crop(number: int) -> tuple[Axis, Axis]:
    """Returns the crop of a window; for a negative number, the inverse of the crop."""
    down, across = WINDOWS[abs(number)]
    if number >= 0:
        return down, across
    return _invert_axis(down), _invert_axis(across)


def _invert_axis(axis: Axis) -> Axis:
    scale, start = axis
    return (1 / scale, -start / scale) if axis != FULL_AXIS else FULL_AXIS
