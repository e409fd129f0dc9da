"""Conversion of annotated masks (COCO polygons or run lengths) to compressed run lengths."""

import json

import numpy as np

from pipelines.images.square import Region
from pipelines.records.reasons import reason_of
from pipelines.records.rle import decode_mask, encode_mask
from pipelines.records.schema import BadInput

_UPSCALE = 5
"""Factor by which COCO's code enlarges polygons before it rounds them to pixels."""

_MAX_POLYGONS = 10_000
_MAX_OUTLINE = 20_000.0
"""Most polygons of one mask, and most length of their outlines [sides of the image]; COCO's finest
masks have hundreds."""


def normalize_mask(text: str, *, width: int, height: int) -> str:
    """Returns compressed COCO run lengths of an annotation's mask.

    Args:
      text: {"size", "counts"} or {"size", "polygons"} [JSON].
      width: width of the image [pixels].
      height: height of the image [pixels].

    Raises:
      BadInput: if the mask is malformed, empty, or does not have the size of the image.
    """
    # `BadInput` is a ValueError: it goes through unchanged, while other errors get "malformed mask"
    # before them.
    try:
        raw = json.loads(text)
        size = [int(v) for v in raw["size"]]
        if size != [height, width]:
            raise BadInput(f"mask is {size[1]}x{size[0]}, image is {width}x{height}")
        if "polygons" in raw:
            mask = polygon_mask(raw["polygons"], width=width, height=height)
        else:
            mask = _decode_run_lengths(text)
    except BadInput:
        raise
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise BadInput(f"malformed mask: {reason_of(error)}") from error
    if not mask.any():
        raise BadInput("mask is empty")
    return encode_mask(mask)


def _decode_run_lengths(text: str) -> np.ndarray:
    """Returns the mask of run lengths.

    Raises:
      BadInput: if they are malformed.
    """
    try:
        return decode_mask(text)
    except BadInput as error:
        raise BadInput(f"malformed mask: {error}") from error


def crop_mask(text: str, crop: Region) -> str:
    """Returns the run lengths of a mask cropped to (x0, y0, x1, y1).

    Raises:
      BadInput: if the cropped mask is empty.
    """
    mask = decode_mask(text)
    x0, y0, x1, y1 = crop
    if (x0, y0, y1, x1) == (0, 0, *mask.shape):
        return text
    cropped = mask[y0:y1, x0:x1]
    if not cropped.any():
        raise BadInput("mask is empty in the crop")
    return encode_mask(cropped)


def pad_mask(text: str, kept: Region, region: Region) -> str:
    """Returns the run lengths of a mask of the part `kept` of a picture, as a mask of a region."""
    if region == kept:
        return text
    x0, y0, x1, y1 = region
    rows, columns = (kept[1] - y0, y1 - kept[3]), (kept[0] - x0, x1 - kept[2])
    return encode_mask(np.pad(decode_mask(text), (rows, columns)))


def polygon_mask(polygons: list[list[float]], *, width: int, height: int) -> np.ndarray:
    """Returns the bool mask (H, W) of the union of polygons [x0, y0, x1, y1, ...].

    Source: cocodataset/cocoapi `common/maskApi.c` (rleFrPoly), so that areas equal COCO's.
    """
    _check_polygons(polygons, max(width, height))
    mask = np.zeros(width * height, dtype=bool)
    for polygon in polygons:
        points = np.asarray(polygon, dtype=np.float64).reshape(-1, 2)
        # Going down the columns, each crossing of the outline switches between outside and inside.
        changes = _column_crossings(points, width, height)
        # One column, from the top. Where the sum is odd, it is inside:
        #
        #     toggles   0 1 0 0 1 0
        #     sum       0 1 1 1 2 2
        #     inside    . x x x . .
        toggles = np.bincount(changes, minlength=mask.size + 1)[: mask.size]
        mask |= np.cumsum(toggles) % 2 == 1
    return mask.reshape(width, height).T


def _check_polygons(polygons: list[list[float]], side: int) -> None:
    """Refuses polygons that would take too much memory or time to draw.

    Raises:
      BadInput: if there are too many, they are too long, or they lie far outside of the image.
    """
    if not isinstance(polygons, list) or not all(isinstance(p, list) for p in polygons):
        raise BadInput(f"malformed mask: polygons must be a list of lists, got {polygons!r:.60}")
    if len(polygons) > _MAX_POLYGONS:
        raise BadInput(f"mask has {len(polygons)} polygons, {_MAX_POLYGONS} are accepted")
    length = 0.0
    for polygon in polygons:
        if len(polygon) % 2:
            raise BadInput(f"mask has a polygon of {len(polygon)} numbers, an x without its y")
        points = np.asarray(polygon, dtype=np.float64).reshape(-1, 2)
        if not np.isfinite(points).all() or np.abs(points).max(initial=0) > 2 * side:
            raise BadInput("mask has points far outside of the image")
        length += np.abs(points - np.roll(points, -1, axis=0)).max(axis=1).sum()
    if length > _MAX_OUTLINE * side:
        raise BadInput(f"mask has an outline of {length:.3g} pixels")


def _column_crossings(points: np.ndarray, width: int, height: int) -> np.ndarray:
    """Returns the outline's crossings of pixel columns, as indices into the column-major mask."""
    # COCO's way: enlarge by 5, round the corners, walk along the edges pixel by pixel, and keep the
    # steps that pass the middle of an original column. Its rounding is part of the published areas.
    corners = (_UPSCALE * points + 0.5).astype(np.int64)
    edges = zip(corners, np.roll(corners, -1, axis=0), strict=True)
    outline = np.concatenate([_edge_points(start, end) for start, end in edges])
    u, v = outline[:, 0], outline[:, 1]
    column_changes = np.flatnonzero(u[1:] != u[:-1]) + 1
    x = np.where(
        u[column_changes] < u[column_changes - 1], u[column_changes], u[column_changes] - 1
    )
    x = (x + 0.5) / _UPSCALE - 0.5
    y = (np.minimum(v[column_changes], v[column_changes - 1]) + 0.5) / _UPSCALE - 0.5
    # Of the enlarged outline's steps in x, only those at the centre of a pixel column count.
    is_vertex = (np.floor(x) == x) & (x >= 0) & (x <= width - 1)
    y = np.ceil(np.clip(y[is_vertex], 0, height))
    return (x[is_vertex] * height + y).astype(np.int64)


def _edge_points(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Returns the points of one edge, both ends included, from `start` to `end`."""
    (xs, ys), (xe, ye) = start, end
    dx, dy = abs(xe - xs), abs(ye - ys)
    # Edges are walked in ascending order of their longer axis and reversed afterwards, so that an
    # edge that two polygons share rounds to the same pixels in both directions.
    flip = (dx >= dy and xs > xe) or (dx < dy and ys > ye)
    if flip:
        xs, xe, ys, ye = xe, xs, ye, ys
    steps = np.arange(max(dx, dy) + 1)
    if flip:
        steps = steps[::-1]
    if dx >= dy:
        slope = (ye - ys) / dx if dx else 0.0
        return np.stack([steps + xs, (ys + slope * steps + 0.5).astype(np.int64)], axis=1)
    slope = (xe - xs) / dy
    return np.stack([(xs + slope * steps + 0.5).astype(np.int64), steps + ys], axis=1)
