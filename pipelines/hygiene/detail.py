"""Whether two pictures are the same: their fine edges, part by part, one laid over the other.

Different pictures may run alike at large: a horizon, a face, the axes of a chart. The same picture
agrees in nearly all of its parts, however it was changed.
"""

import functools
import io

import numpy as np
from PIL import Image

from pipelines.hygiene.alignment import gaussian
from pipelines.hygiene.fingerprint import Axis, edges

_SIDE = 192
"""Side at which edges are compared [pixels]."""

_BLOCKS = 12
"""Parts across."""

_SHIFT = 2
"""How far each part may lie from where the alignment has it [pixels]."""

_FINE, _SMOOTH = 0.8, 6.0
"""Edges are blurred by the one, and lose what the other leaves of them [pixels]: parts that run
one way throughout (grass, text, fences) would agree with all others that do."""

_MARGIN = 0.01
"""What is left out at the border of the overlap [fraction of the side]."""

_WORST, _BEST = 0.15, 0.75
"""Quantiles, over parts by weight, of what likeness compares."""

_CLEAN = 2 / 3
"""The least that the best parts count as: two pictures do not look alike for agreeing nowhere."""


class Detail:
    """The fine edges of one picture."""

    def __init__(self, encoded: bytes) -> None:
        with Image.open(io.BytesIO(encoded)) as image:
            small = image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BOX)
        self._image = small

    @functools.cached_property
    def _edges(self) -> np.ndarray:
        return edges(self._image)[0]

    def likeness(self, other: "Detail", crop: tuple[Axis, Axis]) -> float:
        """Returns how alike two pictures are, in [0, 1]; 1 is the same picture.

        It is the correlation of the parts that agree least, over that of those that agree most:
        re-encoding lowers all of them, another picture some.

        Args:
          other: what this one may be a crop of, or the other way around.
          crop: of the rows and columns of `other`, that this picture shows.
        """
        (down, top), (across, left) = crop
        box = (left, top, left + across, top + down)
        laid = other._image.transform(
            (_SIDE, _SIDE),
            Image.Transform.EXTENT,
            tuple(side * _SIDE for side in box),
            Image.Resampling.BICUBIC,
        )
        rows, columns = _inside(down, top), _inside(across, left)
        both = (slice(None), rows[:, None], columns)
        a, b = (_fine(fields, both) for fields in (self._edges, edges(laid)[0]))
        agreed, weights = _agreement(a, b)
        weights = weights * _covered(rows)[:, None] * _covered(columns)
        if weights.sum() < 1:
            return 0.0
        worst, best = (_quantile(agreed, weights, q) for q in (_WORST, _BEST))
        return worst / max(best, _CLEAN)


def _inside(scale: float, start: float) -> np.ndarray:
    """Returns where a crop of one axis lies within the picture: rows or columns of it."""
    position = start + scale * (np.arange(_SIDE) + 0.5) / _SIDE
    return np.flatnonzero((position > _MARGIN) & (position < 1 - _MARGIN))


def _covered(places: np.ndarray) -> np.ndarray:
    """Returns how much of each part's rows, or columns, is among those given: (12,)."""
    size = _SIDE // _BLOCKS
    return np.bincount(places // size, minlength=_BLOCKS) / size


def _fine(fields: np.ndarray, both: tuple) -> np.ndarray:
    """Returns the fine detail of edges, where both pictures have some; of unit mean square."""
    common = fields[both]
    for axis in (2, 1):  # Lines that cross the picture are their template's.
        common = common - np.median(common, axis=axis, keepdims=True)
    whole = np.zeros_like(fields)
    whole[both] = common
    fine, smooth = gaussian(_SIDE, _FINE), gaussian(_SIDE, _SMOOTH)
    whole = fine @ whole @ fine.T
    whole = whole - smooth @ whole @ smooth.T
    return whole / max(float(np.sqrt(np.square(whole).mean())), 1e-6)


def _agreement(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the correlation of each part at its best shift, and its weight, (12, 12) each.

    A part without edges in either picture weighs nothing, one with many no more than others.
    """
    strength = np.square(b).sum(0)
    ours, theirs = _means(np.square(a).sum(0)), _means(strength)
    best = np.zeros((_BLOCKS, _BLOCKS), np.float32)
    for shift in np.ndindex(2 * _SHIFT + 1, 2 * _SHIFT + 1):
        by = (shift[0] - _SHIFT, shift[1] - _SHIFT)
        product = (a * np.roll(b, by, axis=(1, 2))).sum(0)
        norm = np.sqrt(ours * _means(np.roll(strength, by, axis=(0, 1))))
        best = np.maximum(best, _means(product) / np.maximum(norm, 1e-6))
    return best, np.minimum(np.maximum(ours, theirs), 1)


def _means(values: np.ndarray) -> np.ndarray:
    size = _SIDE // _BLOCKS
    return values.reshape(_BLOCKS, size, _BLOCKS, size).mean(axis=(1, 3))


def _quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    order = np.argsort(values, axis=None)
    upto = np.cumsum(weights.reshape(-1)[order])
    return float(values.reshape(-1)[order][np.searchsorted(upto, share * upto[-1])])
