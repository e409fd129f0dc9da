"""RefCOCO's IoU: a box and a mask written as tokens, against the full-resolution mask."""

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float
from PIL import Image

from model.eval.metrics.scores import Fields, ItemScore
from pipelines.records.codes import BOX, MASK, NUM_SEG, Box, numbers, parse_box
from pipelines.records.rle import decode_mask

_TARGET = re.compile(f"({BOX})({MASK})")
_THRESHOLDS = (0.5, 0.75)


def miou(prediction: str, fields: Fields) -> ItemScore:
    """Returns the IoU of one expression, in [0, 1]; their plain mean is the mIoU.

    The item also says whether the box alone reaches an IoU of 0.5 and of 0.75 ("box_accuracy@0.5"),
    and whether nothing could be drawn ("invalid", an IoU of 0): the prediction does not start with
    4 location and 16 segmentation tokens, or its box has no pixels.

    Source: big_vision `evaluators/proj/paligemma/transfers/segmentation.py` at 0127fb6.

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "masks" holds the run lengths of the true mask, "decode_mask"
        the mask codec's decoder, "box" the annotated box, as `Box`; without a box, the mask's
        bounds count.

    Raises:
      ValueError: if there is not one mask, or its runs do not fill its size.
    """
    if len(fields["masks"]) != 1:
        raise ValueError(f"masks must hold one mask, got {len(fields['masks'])}.")
    truth = decode_mask(fields["masks"][0])
    box_and_codes = parse_box_and_codes(prediction)
    # A text that cannot be drawn is scored, not raised: it counts as a wrong answer. Its box has no
    # area, so it misses every threshold.
    box, codes = box_and_codes or ((0.0, 0.0, 0.0, 0.0), [])
    overlap = box_iou(box, fields.get("box") or mask_bounds(truth))
    also = {f"box_accuracy@{t}": float(t <= overlap) for t in _THRESHOLDS}
    if box_and_codes is None or not has_pixels(box, truth.shape):
        return ItemScore(score=0.0, also={**also, "invalid": 1.0})
    iou = mask_iou(box, fields["decode_mask"](codes), truth)
    return ItemScore(score=iou, also={**also, "invalid": 0.0})


def parse_box_and_codes(prediction: str) -> tuple[Box, list[int]] | None:
    """Returns the box and the 16 codes that a text starts with; None if it does not."""
    match = _TARGET.match(prediction)
    if match is None:
        return None
    box, codes = parse_box(match[1]), numbers(match[2])
    ymin, xmin, ymax, xmax = box
    # The pattern accepts any digits, so numbers outside the vocabulary (`<loc9999>`) end here.
    if max(box) > 1 or max(codes) >= NUM_SEG or ymax <= ymin or xmax <= xmin:
        return None
    return box, codes


def mask_iou(box: Box, mask: Float[np.ndarray, "64 64"], truth: Bool[np.ndarray, "H W"]) -> float:
    """Returns the IoU of a mask (positive inside), scaled into its box, with the true mask."""
    y0, x0, y1, x1 = _box_in_pixels(box, truth.shape)
    scaled = Image.fromarray(np.asarray(mask)).resize((x1 - x0, y1 - y0), Image.Resampling.BILINEAR)
    predicted = np.asarray(scaled) > 0
    # Of a true mask of 10 pixels, 6 are drawn and 4 of those are right: 4 / (10 + 6 - 4) = 0.33.
    # True pixels outside the box cannot be drawn, but count below the line.
    inter = np.logical_and(predicted, truth[y0:y1, x0:x1]).sum()
    union = truth.sum() + predicted.sum() - inter
    return float(inter / union) if union else 0.0


def has_pixels(box: Box, size: tuple[int, ...]) -> bool:
    """Returns whether a box still covers a pixel after its edges are rounded down to pixels."""
    y0, x0, y1, x1 = _box_in_pixels(box, size)
    return y1 > y0 and x1 > x0


def box_iou(left: Sequence[float], right: Sequence[float]) -> float:
    """Returns the IoU of two boxes."""
    # Corners are (ymin, xmin, ymax, xmax): the larger of the minima, the smaller of the maxima. If
    # the boxes do not meet, that "box" has a negative side, and `_box_area` is 0.
    common = (*map(max, left[:2], right[:2]), *map(min, left[2:], right[2:]))
    inter = _box_area(common)
    union = _box_area(left) + _box_area(right) - inter
    return inter / union if union else 0.0


def mask_bounds(mask: Bool[np.ndarray, "H W"]) -> Box:
    """Returns the box around a mask's pixels; a box without area for an empty mask."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not rows.size:
        return (0.0, 0.0, 0.0, 0.0)
    height, width = mask.shape
    return (
        float(rows[0] / height),
        float(columns[0] / width),
        float((rows[-1] + 1) / height),
        float((columns[-1] + 1) / width),
    )


def _box_area(box: Sequence[float]) -> float:
    return max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0)


def _box_in_pixels(box: Box, size: tuple[int, ...]) -> tuple[int, int, int, int]:
    height, width = size
    return int(box[0] * height), int(box[1] * width), int(box[2] * height), int(box[3] * width)
