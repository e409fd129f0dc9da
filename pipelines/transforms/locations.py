"""Conversion of boxes to location tokens."""

import math
from collections.abc import Sequence

from pipelines.images.square import Region
from pipelines.records.codes import format_box
from pipelines.records.schema import BadInput

_OUTSIDE = 0.1
"""Part of a side by which a box may end outside of the picture, where it is clipped."""


def check_pixels(boxes: Sequence[Sequence[float]], size: tuple[int, int]) -> None:
    """Refuses boxes that are in no pixels of this picture, as fractions and thousandths of it.

    One small box among others is an annotator's, and so is an edge that is a little outside.

    Args:
      boxes: x0, y0, x1, y1 of each.
      size: width and height of the picture [pixels].

    Raises:
      BadInput: naming the box.
    """
    if boxes and all(0 <= value <= 1 for box in boxes for value in box):
        raise BadInput(
            f"box must be in pixels, got {list(boxes[0])}: it lies within the first pixel"
        )
    for box in boxes:
        outside = (max(-v, v - side) / side for v, side in zip(box, (*size, *size), strict=False))
        if any(part > _OUTSIDE for part in outside):
            raise BadInput(
                f"box must be in pixels of the picture, got {[round(v, 1) for v in box]} in "
                f"{size[0]}x{size[1]}"
            )


def box_tokens(box: Sequence[float], *, kept: Region, region: Region) -> str:
    """Returns four tokens `<locNNNN>`: ymin, xmin, ymax, xmax.

    Source: big_vision `pp/proj/paligemma/segmentation.py`, which clips to the image too.

    Args:
      box: x0, y0, x1, y1 [pixels of the picture]; it is clipped to the part that was kept.
      kept: part of the picture that was kept.
      region: what the square shows: that part, and bars beside it.

    Raises:
      BadInput: if the box is malformed or lies outside the part.
    """
    if len(box) != 4 or not all(math.isfinite(v) for v in box):
        raise BadInput(f"box must be 4 numbers, got {list(box)}")
    # (20, 20, 40, 40) of 80 x 80 is 0.25 to 0.5: <loc0256><loc0256><loc0512><loc0512>.
    left, top, right, bottom = region
    x0, x1 = ((min(max(v, kept[0]), kept[2]) - left) / (right - left) for v in (box[0], box[2]))
    y0, y1 = ((min(max(v, kept[1]), kept[3]) - top) / (bottom - top) for v in (box[1], box[3]))
    if x1 <= x0 or y1 <= y0:
        width, height = kept[2] - kept[0], kept[3] - kept[1]
        raise BadInput(f"box {[round(v, 1) for v in box]} is empty in {width}x{height}")
    return format_box((y0, x0, y1, x1))
