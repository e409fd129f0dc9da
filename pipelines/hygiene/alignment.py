"""Alignment of one fingerprint with another, and their likeness then: a crop moves every edge."""

import functools

import numpy as np

from pipelines.hygiene.fingerprint import SIDE, Axis, interpolation_matrix

_LEVELS = ((3.0, 4), (1.2, 4))
"""Blur [cells] and iterations of each level, coarse first."""

_FINE_BLUR = 1.2
"""Blur at which the aligned maps are compared [cells]; it forgives a misplacement of one cell."""

_BACKGROUND = 8.0
"""Structure smoother than this is left out of the comparison [cells]: the edges of dense text or
grass have one direction all over the picture, whatever the picture shows."""

_MAX_SCALE = 1.18
_MAX_SHIFT = 0.1
"""Largest scale and shift of an alignment [fractions of the side]; a 10 % crop has scale 1.11."""

_CENTRES = ((np.arange(SIDE) + 0.5) / SIDE - 0.5).astype(np.float32)


def align_fingerprints(
    query: np.ndarray, other: np.ndarray, crop: tuple[Axis, Axis]
) -> tuple[float, tuple[Axis, Axis]]:
    """Returns the likeness of two maps, in [-1, 1], and the crop of `other` that `query` shows.

    Lines that cross the whole picture (frames, axes, grids) do not count, since pictures made from
    one template share them.

    Args:
      query: a fingerprint.
      other: a fingerprint of which `query` may be a crop, or the other way around.
      crop: approximate crop of the rows and columns of `other`, from which the alignment starts.
    """
    # Find the crop, lay `other` over `query`, remove what templates share, then correlate.
    q, o = query.astype(np.float32), other.astype(np.float32)
    fitted = _fit_crop(q, o, crop)
    rows, columns = (interpolation_matrix(*axis) for axis in fitted)
    down, across = (np.flatnonzero(matrix.sum(1) > 0.99) for matrix in (rows, columns))
    pair = []
    for fields in (q, rows @ o @ columns.T):
        common = fields[:, down[:, None], across]  # The overlap of both maps.
        # The median of a row or column is the line, if any, that crosses the whole picture there.
        for axis in (2, 1):
            common = common - np.median(common, axis=axis, keepdims=True)
        overlap = np.zeros_like(fields)
        overlap[:, down[:, None], across] = common
        pair.append(
            _blur_fingerprint_fields(overlap, _FINE_BLUR)
            - _blur_fingerprint_fields(overlap, _BACKGROUND)
        )
    norms = np.linalg.norm(pair[0]) * np.linalg.norm(pair[1])
    return float((pair[0] * pair[1]).sum() / max(norms, 1e-6)), fitted


def _fit_crop(query: np.ndarray, other: np.ndarray, crop: tuple[Axis, Axis]) -> tuple[Axis, Axis]:
    """Returns the crop of `other` (of rows, of columns) that matches `query`.

    Gauss-Newton on the scale and the shift of each axis. Source: Lucas and Kanade, IJCAI 1981.
    """
    (down, top), (across, left) = crop
    # Scale and shift of x, then of y; shifts are of the centre, so that scaling does not move it.
    parameters = np.array([across, left + (across - 1) / 2, down, top + (down - 1) / 2])
    # A strong blur first, which lets edges that lie far apart attract each other; then a weak one
    # for precision.
    for blur, iterations in _LEVELS:
        q, o = (
            _unit_norm(_blur_fingerprint_fields(query, blur)),
            _unit_norm(_blur_fingerprint_fields(other, blur)),
        )
        slope_down, slope_across = np.gradient(o, 1 / SIDE, axis=(1, 2))
        for _ in range(iterations):
            # Lay `other` over the query as the current crop has it, and ask how each of the four
            # parameters would change the difference that is left.
            rows, columns = (interpolation_matrix(*axis) for axis in _crop_axes(parameters))
            inside = _fingerprint_overlap(rows, columns)
            laid, dx, dy = (rows @ f @ columns.T * inside for f in (o, slope_across, slope_down))
            gain = (laid * q).sum() / max((laid * laid).sum(), 1e-9)
            residual = (q * inside - gain * laid).reshape(-1)
            steps = np.stack([dx * _CENTRES, dx, dy * _CENTRES[:, None], dy]).reshape(4, -1) * gain
            normal = steps @ steps.T
            normal += np.diag(1e-3 * np.diag(normal) + 1e-9)  # Damped, as it may be singular.
            change = np.clip(np.linalg.solve(normal, steps @ residual), -0.05, 0.05)
            parameters = parameters + change
            parameters[::2] = np.clip(parameters[::2], 1 / _MAX_SCALE, _MAX_SCALE)
            parameters[1::2] = np.clip(parameters[1::2], -_MAX_SHIFT, _MAX_SHIFT)
            if np.abs(change).max() < 1e-3:
                break
    return _crop_axes(parameters)


def _crop_axes(parameters: np.ndarray) -> tuple[Axis, Axis]:
    across, right, down, low = (float(value) for value in parameters)
    return (down, low + (1 - down) / 2), (across, right + (1 - across) / 2)


def _fingerprint_overlap(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Returns 1 in the overlap of both maps, else 0: (64, 64)."""
    down, across = ((m.sum(1) > 0.99).astype(np.float32) for m in (rows, columns))
    return down[:, None] * across


def _unit_norm(fields: np.ndarray) -> np.ndarray:
    return fields / max(float(np.linalg.norm(fields)), 1e-6)


def _blur_fingerprint_fields(fields: np.ndarray, sigma: float) -> np.ndarray:
    kernel = gaussian_matrix(SIDE, sigma)
    return kernel @ fields @ kernel.T


@functools.cache
def gaussian_matrix(side: int, sigma: float) -> np.ndarray:
    """Returns the matrix (side, side) that blurs along an axis."""
    distance = np.arange(side)[:, None] - np.arange(side)
    kernel = np.exp(-0.5 * (distance / sigma) ** 2)
    return (kernel / kernel.sum(1, keepdims=True)).astype(np.float32)
