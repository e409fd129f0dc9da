"""How one fingerprint lies over another, and how alike they are then: a crop moves every edge."""

import functools

import numpy as np

from pipelines.hygiene.fingerprint import SIDE, Axis, interpolation

_LEVELS = ((3.0, 4), (1.2, 4))
"""Blur [cells] and iterations of each level, coarse first."""

_FINE_BLUR = 1.2
"""Blur under which the aligned maps are compared: a cell of misplacement is forgiven."""

_BACKGROUND = 8.0
"""What is smoother than this is left out of the comparison [cells]: dense text and grass run the
same way all over the picture, whatever they say."""

_MAX_SCALE = 1.18
_MAX_SHIFT = 0.1
"""How far an alignment may go [fraction of the side]; a 10 % crop is a scale of 1.11."""

_CENTRES = ((np.arange(SIDE) + 0.5) / SIDE - 0.5).astype(np.float32)


def align(
    query: np.ndarray, other: np.ndarray, crop: tuple[Axis, Axis]
) -> tuple[float, tuple[Axis, Axis]]:
    """Returns how alike two maps are, in [-1, 1], and the crop of `other` that `query` shows.

    Lines that cross the picture (frames, axes, grids) do not count: pictures of one template share
    them, whatever they show.

    Args:
      query: a fingerprint.
      other: the one it may be a crop of, or the other way around.
      crop: of the rows and columns of `other`, roughly; where the alignment starts.
    """
    q, o = query.astype(np.float32), other.astype(np.float32)
    fitted = _fit(q, o, crop)
    rows, columns = (interpolation(*axis) for axis in fitted)
    down, across = (np.flatnonzero(matrix.sum(1) > 0.99) for matrix in (rows, columns))
    pair = []
    for fields in (q, rows @ o @ columns.T):
        common = fields[:, down[:, None], across]  # What both maps have.
        for axis in (2, 1):
            common = common - np.median(common, axis=axis, keepdims=True)
        whole = np.zeros_like(fields)
        whole[:, down[:, None], across] = common
        pair.append(_blurred(whole, _FINE_BLUR) - _blurred(whole, _BACKGROUND))
    norms = np.linalg.norm(pair[0]) * np.linalg.norm(pair[1])
    return float((pair[0] * pair[1]).sum() / max(norms, 1e-6)), fitted


def _fit(query: np.ndarray, other: np.ndarray, crop: tuple[Axis, Axis]) -> tuple[Axis, Axis]:
    """Returns the crop of `other` (of rows, of columns) that lies over `query`.

    Gauss-Newton on scale and shift of each axis. Source: Lucas and Kanade, IJCAI 1981.
    """
    (down, top), (across, left) = crop
    found = np.array([across, left + (across - 1) / 2, down, top + (down - 1) / 2])
    for blur, iterations in _LEVELS:
        q, o = _unit(_blurred(query, blur)), _unit(_blurred(other, blur))
        slope_down, slope_across = np.gradient(o, 1 / SIDE, axis=(1, 2))
        for _ in range(iterations):
            rows, columns = (interpolation(*axis) for axis in _axes(found))
            inside = _inside(rows, columns)
            laid, dx, dy = (rows @ f @ columns.T * inside for f in (o, slope_across, slope_down))
            gain = (laid * q).sum() / max((laid * laid).sum(), 1e-9)
            rest = (q * inside - gain * laid).reshape(-1)
            steps = np.stack([dx * _CENTRES, dx, dy * _CENTRES[:, None], dy]).reshape(4, -1) * gain
            normal = steps @ steps.T
            normal += np.diag(1e-3 * np.diag(normal) + 1e-9)
            change = np.clip(np.linalg.solve(normal, steps @ rest), -0.05, 0.05)
            found = found + change
            found[::2] = np.clip(found[::2], 1 / _MAX_SCALE, _MAX_SCALE)
            found[1::2] = np.clip(found[1::2], -_MAX_SHIFT, _MAX_SHIFT)
            if np.abs(change).max() < 1e-3:
                break
    return _axes(found)


def _axes(found: np.ndarray) -> tuple[Axis, Axis]:
    across, right, down, low = (float(value) for value in found)
    return (down, low + (1 - down) / 2), (across, right + (1 - across) / 2)


def _inside(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Returns 1 where both maps have something, else 0: (64, 64)."""
    down, across = ((m.sum(1) > 0.99).astype(np.float32) for m in (rows, columns))
    return down[:, None] * across


def _unit(fields: np.ndarray) -> np.ndarray:
    return fields / max(float(np.linalg.norm(fields)), 1e-6)


def _blurred(fields: np.ndarray, sigma: float) -> np.ndarray:
    kernel = gaussian(SIDE, sigma)
    return kernel @ fields @ kernel.T


@functools.cache
def gaussian(side: int, sigma: float) -> np.ndarray:
    """Returns the matrix (side, side) that blurs an axis."""
    distance = np.arange(side)[:, None] - np.arange(side)
    kernel = np.exp(-0.5 * (distance / sigma) ** 2)
    return (kernel / kernel.sum(1, keepdims=True)).astype(np.float32)
