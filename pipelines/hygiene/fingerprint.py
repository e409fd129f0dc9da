"""Fingerprints of pictures that survive re-encoding, resizing and recolouring.

A fingerprint is a map of 64 x 64 cells with the direction and strength of the edges in each. It
does not depend on colours: channels are summed, opposite directions count as one, and contrast
enters by its square root. `pipelines.hygiene.alignment` finds the crop between two fingerprints;
`pipelines.hygiene.detail` decides by the pixels whether two pictures are the same.
"""

import functools
import io

import numpy as np
from PIL import Image

SIDE = 64
"""Cells per side of the map."""

SHAPE = (2, SIDE, SIDE)
"""Two maps: edge strength times the cosine, and times the sine, of twice the edge's angle. Doubling
the angle makes opposite directions equal."""

Axis = tuple[float, float]
"""A crop of one axis: (length, start) [fractions of the side]."""

FULL_AXIS: Axis = (1.0, 0.0)
_CROPS: tuple[Axis, ...] = ((0.9, 0.0), (0.9, 0.05), (0.9, 0.1))
WINDOWS: tuple[tuple[Axis, Axis], ...] = (
    (FULL_AXIS, FULL_AXIS),
    *((down, across) for down in _CROPS for across in _CROPS),
)
"""Crops (of rows, of columns) that the search for candidates tries; alignment refines the best."""

_COARSE = 8
"""Cells per side of the vectors with which candidates are searched."""

_PIXELS = 2 * SIDE
"""Side at which edges are measured [pixels]."""

_MIN_EDGE = 0.5
"""Mean gradient below which a picture counts as blank [grey levels]; blank ones all look alike."""


def fingerprint(encoded: bytes) -> np.ndarray | None:
    """Returns the fingerprint of an encoded image, int8 of `SHAPE`; None if it is blank."""
    with Image.open(io.BytesIO(encoded)) as image:
        small = image.convert("RGB").resize((_PIXELS, _PIXELS), Image.Resampling.BOX)
    fine, strength = edge_fields(small)
    if strength.mean() < _MIN_EDGE:
        return None
    # Scaled by a high percentile, not by the maximum, which a single edge could set.
    fields = _pool_cells(fine, SIDE)
    largest = np.percentile(np.abs(fields), 99.5)
    return np.round(np.clip(fields / max(largest, 1e-6), -1, 1) * 127).astype(np.int8)


def edge_fields(image: Image.Image) -> tuple[np.ndarray, np.ndarray]:
    """Returns an RGB image's edges (2, H, W), as in a fingerprint, and their gradients (H, W)."""
    # With the structure tensor (xx, yy, xy) of a gradient g: (xx - yy, 2 xy) = |g|^2 (cos 2a,
    # sin 2a). Dividing by |g|^1.5 leaves the square root of the contrast.
    pixels = np.asarray(image, dtype=np.float32)
    down, across = np.gradient(pixels, axis=(0, 1))
    xx, yy, xy = ((a * b).sum(2) for a, b in ((across, across), (down, down), (across, down)))
    strength = np.sqrt(xx + yy)
    scale = np.sqrt(strength) / np.maximum(xx + yy, 1e-6)
    return np.stack([(xx - yy) * scale, 2 * xy * scale]), strength


def coarse_vectors(prints: np.ndarray) -> np.ndarray:
    """Returns unit vectors (W, N, 192) float32 of every window of N maps, the whole map first."""
    # Three channels of 8 x 8 cells make the 192 numbers: the two fields and their strength, whose
    # mean is removed, since two busy pictures would otherwise agree for being busy.
    maps = prints.astype(np.float32)
    strength = np.hypot(maps[:, 0], maps[:, 1])[:, None]
    fields = np.concatenate([maps, strength], axis=1)
    vectors = []
    for down, across in WINDOWS:
        rows, columns = window_matrix(*down), window_matrix(*across)
        pooled = _pool_cells(rows @ fields @ columns.T, _COARSE)
        pooled[:, 2] -= pooled[:, 2].mean(axis=(1, 2), keepdims=True)
        flat = pooled.reshape(len(prints), -1)
        vectors.append(flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6))
    return np.stack(vectors)


@functools.lru_cache(maxsize=16)
def window_matrix(scale: float, start: float) -> np.ndarray:
    """Returns `interpolation(scale, start)`, cached."""
    return interpolation_matrix(scale, start)


def interpolation_matrix(scale: float, start: float) -> np.ndarray:
    """Returns the matrix (64, 64) that stretches a crop of one axis to all cells.

    Cells outside of the map count as 0, so rows that reach there sum to less than 1.
    """
    position = (np.arange(SIDE) + 0.5) * scale + start * SIDE - 0.5
    low = np.floor(position).astype(np.int64)
    part = position - low
    matrix = np.zeros((SIDE, SIDE), dtype=np.float32)
    for column, weight in ((low, 1 - part), (low + 1, part)):
        inside = np.flatnonzero((column >= 0) & (column < SIDE))
        matrix[inside, column[inside]] += weight[inside]
    return matrix


def _pool_cells(fields: np.ndarray, side: int) -> np.ndarray:
    """Averages over squares: (..., S, S) -> (..., side, side)."""
    block = fields.shape[-1] // side
    return fields.reshape(*fields.shape[:-2], side, block, side, block).mean(axis=(-3, -1))
