"""RefCOCO's IoU: masks and boxes written as tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.eval.metrics.miou import box_iou, mask_bounds, miou
from pipelines.records.rle import encode_mask

SEG = "".join(f"<seg{i:03d}>" for i in range(16))
# 1023 * 10 / 50 = 204.6 and so on, rounded up so that the cut to pixels keeps the row.
LOC = "<loc0205><loc0205><loc0614><loc0614>"


def _everything(ids):
    assert list(ids) == list(range(16))
    return np.ones((64, 64), np.float32)


def _truth() -> np.ndarray:
    truth = np.zeros((50, 40), bool)
    truth[10:30, 8:24] = True
    return truth


def _score(prediction: str, truth: np.ndarray, decode=_everything, **fields):
    masks = (encode_mask(truth),)
    return miou(prediction, {"masks": masks, "decode_mask": decode, **fields})


def test_box_of_ones_against_a_rectangle():
    done = _score(LOC + SEG, _truth())
    assert done.score == 1.0
    assert done.also == {"box_accuracy@0.5": 1.0, "box_accuracy@0.75": 1.0, "invalid": 0.0}
    half = _score("<loc0205><loc0205><loc0410><loc0614>" + SEG + "<seg000> and more", _truth())
    assert half.score == pytest.approx(0.5)
    assert (half.also["box_accuracy@0.5"], half.also["box_accuracy@0.75"]) == (1.0, 0.0)


def test_the_mask_is_what_is_above_zero_scaled_bilinearly():
    def gradient(_ids):
        return np.repeat(np.linspace(1, -1, 64, dtype=np.float32)[:, None], 64, axis=1)

    # The box is 20 rows high; the upper 10 are positive.
    assert _score(LOC + SEG, _truth(), gradient).score == pytest.approx(0.5)


def test_scaling_down_averages():
    def stripes(_ids):
        return np.where(np.arange(64) % 2, -3.0, 1.0).astype(np.float32)[None].repeat(64, axis=0)

    # 64 columns onto 16: the mean of every four is negative.
    assert _score(LOC + SEG, _truth(), stripes).score == 0.0


def test_the_annotated_box_is_what_boxes_are_held_against():
    assert _score(LOC + SEG, _truth(), box=[0.2, 0.2, 0.6, 0.6]).also["box_accuracy@0.75"] == 1.0
    assert _score(LOC + SEG, _truth(), box=[0.2, 0.2, 0.6, 0.9]).also["box_accuracy@0.75"] == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "red",
        " " + LOC + SEG,
        "<loc0205><loc0205><loc0614>" + SEG,
        "<loc0614><loc0205><loc0205><loc0614>" + SEG,
        "<loc0205><loc0205><loc1024><loc0614>" + SEG,  # no such token
        LOC + SEG.replace("<seg007>", "<seg128>"),  # no such token
        LOC + SEG[:-8],
    ],
)
def test_malformed_masks_score_zero(text: str):
    done = _score(text, np.ones((5, 7), bool))
    assert done.score == 0.0
    assert done.also == {"box_accuracy@0.5": 0.0, "box_accuracy@0.75": 0.0, "invalid": 1.0}


def test_a_box_without_pixels_is_invalid_and_still_a_box():
    tiny = "<loc0000><loc0000><loc0200><loc0200>"  # 0.2 of 4 pixels
    done = _score(tiny + SEG, np.ones((4, 4), bool), box=[0.0, 0.0, 0.2, 0.2])
    assert (done.score, done.also["invalid"], done.also["box_accuracy@0.5"]) == (0.0, 1.0, 1.0)


BOXES = st.tuples(*[st.integers(0, 9)] * 4).map(
    lambda b: (b[0] / 10, b[1] / 10, (b[0] + 1 + b[2]) / 10, (b[1] + 1 + b[3]) / 10)
)


@given(BOXES, BOXES)
def test_box_iou_is_symmetric_and_one_for_itself(a, b):
    assert box_iou(a, b) == pytest.approx(box_iou(b, a))
    assert 0 <= box_iou(a, b) <= 1 + 1e-12
    assert box_iou(a, a) == pytest.approx(1)


def test_bounds_of_a_mask():
    assert mask_bounds(_truth()) == (0.2, 0.2, 0.6, 0.6)
    assert mask_bounds(np.zeros((3, 5), bool)) == (0.0, 0.0, 0.0, 0.0)
