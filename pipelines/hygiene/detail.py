"""Decides whether two aligned pictures are the same, by comparing their fine edges block by block.

Different pictures may have the same coarse edges: a horizon, a face, the axes of a chart. Two
versions of one picture agree in nearly all of their blocks, however one was changed.
"""

import functools
import io

import numpy as np
from PIL import Image

from pipelines.hygiene.alignment import gaussian_matrix
from pipelines.hygiene.fingerprint import Axis, edge_fields

_SIDE = 192
"""Side at which edges are compared [pixels]."""

_BLOCKS = 12
"""Blocks per side."""

_SHIFT = 2
"""Largest further shift of a single block, after the alignment [pixels]."""

_FINE, _SMOOTH = 0.8, 6.0
"""Blurs whose difference is the fine detail [pixels]. Subtracting the smooth part is needed because
blocks whose edges all have one direction (grass, text, fences) would agree with each other."""

_MARGIN = 0.01
"""Border of the picture that is left out of the overlap [fraction of the side]."""

_WORST, _BEST = 0.15, 0.75
"""Weighted quantiles, over blocks, of the correlations whose ratio is the likeness."""

_CLEAN = 2 / 3
"""Lower bound of the best correlation in that ratio, so that pictures that agree nowhere are not
alike."""


class FineEdges:
    """The fine edges of one picture."""

    def __init__(self, encoded: bytes) -> None:
        with Image.open(io.BytesIO(encoded)) as image:
            small = image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BOX)
        self._image = small

    @functools.cached_property
    def _picture_edge_fields(self) -> np.ndarray:
        return edge_fields(self._image)[0]

    def likeness(self, other: "FineEdges", crop: tuple[Axis, Axis]) -> float:
        """Returns the likeness of two pictures, in [0, 1]; 1 is the same picture.

        It is the correlation of the blocks that agree least, divided by that of the blocks that
        agree most: re-encoding lowers all correlations, another picture only some.

        Args:
          other: a picture of which this one may be a crop, or the other way around.
          crop: crop of the rows and columns of `other` that this picture shows.
        """
        # `other` is cut to the crop and laid over this picture; only what both show is compared.
        (down, top), (across, left) = crop
        box = (left, top, left + across, top + down)
        laid = other._image.transform(
            (_SIDE, _SIDE),
            Image.Transform.EXTENT,
            tuple(side * _SIDE for side in box),
            Image.Resampling.BICUBIC,
        )
        rows, columns = _indices_inside(down, top), _indices_inside(across, left)
        overlap = (slice(None), rows[:, None], columns)
        a, b = (
            _fine_detail(fields, overlap)
            for fields in (self._picture_edge_fields, edge_fields(laid)[0])
        )
        agreed, weights = _block_correlations(a, b)
        weights = weights * _block_coverage(rows)[:, None] * _block_coverage(columns)
        # Less than one block with edges is left in the overlap: nothing to judge by.
        if weights.sum() < 1:
            return 0.0
        worst, best = (_weighted_quantile(agreed, weights, q) for q in (_WORST, _BEST))
        return worst / max(best, _CLEAN)


def _indices_inside(scale: float, start: float) -> np.ndarray:
    """Returns the rows (or columns) of a crop that lie within the picture."""
    position = start + scale * (np.arange(_SIDE) + 0.5) / _SIDE
    return np.flatnonzero((position > _MARGIN) & (position < 1 - _MARGIN))


def _block_coverage(places: np.ndarray) -> np.ndarray:
    """Returns the share of each block's rows (or columns) that is in `places`: (12,)."""
    size = _SIDE // _BLOCKS
    return np.bincount(places // size, minlength=_BLOCKS) / size


def _fine_detail(fields: np.ndarray, overlap: tuple) -> np.ndarray:
    """Returns the fine detail of edges in the overlap, scaled to unit mean square."""
    common = fields[overlap]
    for axis in (2, 1):  # Removes lines that cross the picture, as `align_fingerprints` does.
        common = common - np.median(common, axis=axis, keepdims=True)
    canvas = np.zeros_like(fields)
    canvas[overlap] = common
    fine, smooth = gaussian_matrix(_SIDE, _FINE), gaussian_matrix(_SIDE, _SMOOTH)
    canvas = fine @ canvas @ fine.T
    canvas = canvas - smooth @ canvas @ smooth.T
    return canvas / max(float(np.sqrt(np.square(canvas).mean())), 1e-6)


def _block_correlations(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the correlation of each block at its best shift, and its weight, (12, 12) each.

    A block without edges in both pictures has weight 0. Weights are capped at 1, so that blocks
    with very strong edges do not dominate.
    """
    strength = np.square(b).sum(0)
    ours, theirs = _block_means(np.square(a).sum(0)), _block_means(strength)
    best = np.zeros((_BLOCKS, _BLOCKS), np.float32)
    # 25 shifts, from 2 pixels up and left to 2 down and right; each block may take another one.
    for shift in np.ndindex(2 * _SHIFT + 1, 2 * _SHIFT + 1):
        by = (shift[0] - _SHIFT, shift[1] - _SHIFT)
        product = (a * np.roll(b, by, axis=(1, 2))).sum(0)
        norm = np.sqrt(ours * _block_means(np.roll(strength, by, axis=(0, 1))))
        best = np.maximum(best, _block_means(product) / np.maximum(norm, 1e-6))
    return best, np.minimum(np.maximum(ours, theirs), 1)


def _block_means(values: np.ndarray) -> np.ndarray:
    size = _SIDE // _BLOCKS
    return values.reshape(_BLOCKS, size, _BLOCKS, size).mean(axis=(1, 3))


def _weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    order = np.argsort(values, axis=None)
    upto = np.cumsum(weights.reshape(-1)[order])
    return float(values.reshape(-1)[order][np.searchsorted(upto, share * upto[-1])])
