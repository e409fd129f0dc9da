"""RefCOCO's IoU: a box and a mask written as tokens, against the full-resolution mask."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from PIL import Image

from pipelines.records.rle import decode_mask

_TARGET = re.compile(r"<loc(\d{4})><loc(\d{4})><loc(\d{4})><loc(\d{4})>((?:<seg\d{3}>){16})")
_SEG = re.compile(r"<seg(\d{3})>")

DecodeMask = Callable[[Sequence[int]], Float[np.ndarray, "64 64"]]


def miou(prediction: str, fields: Mapping[str, Any]) -> float:
    """Returns the IoU of one expression, in [0, 1]; their plain mean is the mIoU.

    A prediction that does not start with 4 location and 16 segmentation tokens, or whose box is
    empty, is 0.

    Source: big_vision `evaluators/proj/paligemma/transfers/segmentation.py`.

    Args:
      prediction: what the model wrote [text].
      fields: of the record; "masks" holds the run lengths of the true mask, "decode_mask" the
        mask codec's decoder.
    """
    return mask_iou(prediction, decode_mask(fields["masks"][0]), fields["decode_mask"])


def mask_iou(prediction: str, truth: Bool[np.ndarray, "H W"], decode: DecodeMask) -> float:
    """Returns the IoU of a written mask with a true one."""
    match = _TARGET.match(prediction)
    if match is None:
        return 0.0
    height, width = truth.shape
    y0, x0 = int(int(match[1]) / 1023 * height), int(int(match[2]) / 1023 * width)
    y1, x1 = int(int(match[3]) / 1023 * height), int(int(match[4]) / 1023 * width)
    if y1 <= y0 or x1 <= x0:
        return 0.0
    values = Image.fromarray(np.asarray(decode([int(i) for i in _SEG.findall(match[5])])))
    mask = np.asarray(values.resize((x1 - x0, y1 - y0), Image.Resampling.BILINEAR)) > 0
    inter = np.logical_and(mask, truth[y0:y1, x0:x1]).sum()
    union = truth.sum() + mask.sum() - inter
    return float(inter / union) if union else 0.0
