"""Fits a checkpoint to a model of another resolution."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from model import vlm
from model.checkpoint.digest import flatten_params
from model.config import ModelConfig

POSITIONS = "vision/positions"
QUERIES = ("connector/queries", "connector/mqt/queries")


def resize_positions(
    positions: Float[np.ndarray, "P C"], num_rows: int
) -> Float[np.ndarray, "N C"]:
    """Returns position embeddings of a square grid for another one, interpolated bilinearly.

    The corners keep their values, and so does a class token's row, the first. Equal to
    `scipy.ndimage.zoom(grid, ..., order=1)`, which big_vision uses (`models/vit.py`,
    `resample_posemb`), except where `zoom` rounds the last row out of the grid and returns zeros
    for it (32 x 32 to 16 x 16, say).

    Args:
      positions: one embedding per patch, row by row, after that of a class token if there is one.
      num_rows: number of rows for the new grid.

    Raises:
      ValueError: if one of the grids is not square.
    """
    # No square is another one plus 1, so the number of rows says whether there is a class token.
    old, new = math.isqrt(len(positions)), math.isqrt(num_rows)
    num_classes = len(positions) - old * old
    if num_classes not in (0, 1) or num_classes != num_rows - new * new:
        raise ValueError(
            f"{POSITIONS} must be of a square grid, got {len(positions)} for {num_rows}."
        )
    grid = positions[num_classes:].reshape(old, old, -1).astype(np.float64)
    # Bilinear interpolation is separable: one small matrix serves both rows and columns.
    weights = _position_interpolation_weights(old, new)
    resized = np.einsum("ai,bj,ijc->abc", weights, weights, grid, optimize=True)
    rows = resized.reshape(new * new, -1).astype(positions.dtype)
    return np.concatenate([positions[:num_classes], rows]) if num_classes else rows


def extend_bank(
    trained: Float[np.ndarray, "M C"], fresh: Float[np.ndarray, "N C"]
) -> Float[np.ndarray, "N C"]:
    """Returns a query bank that starts with the trained queries and continues with fresh ones.

    The bank is ordered, so a budget that was trained before is served by the same queries as
    before. (MQT's fixed positions, by contrast, are those of the new grid.) Source: PARCEL, app.
    Implementation Details: "we expand the query bank"; that the first rows stay, and what the new
    ones are, is [ours].
    """
    return np.concatenate([trained, np.asarray(fresh)[len(trained) :].astype(trained.dtype)])


def fit_resolution(
    loaded: Mapping[str, np.ndarray],
    expected: Mapping[str, Any],
    fresh: Callable[[], Mapping[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """Returns a checkpoint's parameters, with those that depend on the resolution adapted.

    Position embeddings are resized, query banks extended; a bank is never cut. Parameters that do
    not fit for another reason are left for the caller to refuse.

    Args:
      loaded: the checkpoint's parameters by path.
      expected: the model's parameters by path; only shapes are read.
      fresh: function that returns the model's initial parameters by path; called where a bank is
        extended.
    """
    fitted = dict(loaded)
    # Only these depend on the number of patches: a position for each, and at most a query for each.
    for path in (POSITIONS, *QUERIES):
        if path not in loaded or path not in expected:
            continue
        (rows, width), (expected_rows, expected_width) = loaded[path].shape, expected[path].shape
        if width != expected_width or rows == expected_rows:
            continue
        if path == POSITIONS:
            fitted[path] = resize_positions(np.asarray(loaded[path]), expected_rows)
        elif rows < expected_rows:
            fitted[path] = extend_bank(np.asarray(loaded[path]), fresh()[path])
    return fitted


def check_resolutions(small: ModelConfig, large: ModelConfig) -> None:
    """Checks from shapes alone that a checkpoint of one resolution can start a stage at another.

    Args:
      small: config of the checkpoint's model.
      large: config of the stage's model, with the same connector.

    Raises:
      ValueError: if parameters of the two have different shapes that `fit_resolution` does not fit.
    """
    shapes = dict(flatten_params(vlm.abstract_params(small)))
    expected = dict(flatten_params(vlm.abstract_params(large)))
    for path, leaf in expected.items():
        old = shapes[path].shape if path in shapes else None
        grows = path in QUERIES and old and old[1:] == leaf.shape[1:] and old[0] < leaf.shape[0]
        if old != leaf.shape and path != POSITIONS and not grows:
            raise ValueError(
                f"{path} has shape {old} at {small.vision.image_px} px and {leaf.shape} at "
                f"{large.vision.image_px} px, so a stage there cannot start from a checkpoint of "
                f"here; only a query bank named {' or '.join(QUERIES)} is extended, its first rows "
                f"stay. Rename it, or give it one shape."
            )


def _position_interpolation_weights(old: int, new: int) -> Float[np.ndarray, "N O"]:
    """Returns the weight of each old place along one axis in each new place."""
    # Three places to five are 0, 0.5, 1, 1.5, 2 of the old ones. The corners stay:
    #
    #     1    0    0
    #     0.5  0.5  0
    #     0    1    0
    #     0    0.5  0.5
    #     0    0    1
    places = np.arange(new) * ((old - 1) / (new - 1)) if new > 1 else np.zeros(1)
    lower = np.clip(np.floor(places).astype(int), 0, max(old - 2, 0))
    share = places - lower
    weights = np.zeros((new, old))
    weights[np.arange(new), lower] = 1 - share
    weights[np.arange(new), np.minimum(lower + 1, old - 1)] += share
    return weights
