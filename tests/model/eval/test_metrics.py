import numpy as np
import pytest

from model.eval.exact_match import exact_match
from model.eval.miou import mask_iou
from model.eval.registry import get_metric
from model.eval.relaxed_accuracy import relaxed_accuracy
from pipelines.records.rle import encode_mask


@pytest.mark.parametrize(
    ("prediction", "answer", "score"),
    [
        ("Red", "red", 1.0),
        ("10.5", "10", 1.0),
        ("10.51", "10", 0.0),
        ("12%", "0.12", 1.0),
        ("-10", "10", 0.0),
        ("0.0", "0", 0.0),  # a target of zero is compared as text
        ("0", "0", 1.0),
        ("2001 ", "2001", 1.0),
        ("red ", "red", 0.0),
    ],
)
def test_relaxed_accuracy(prediction: str, answer: str, score: float):
    assert relaxed_accuracy(prediction, {"answers": (answer,)}) == score


@pytest.mark.parametrize(
    ("prediction", "answers", "score"),
    [
        ("yes", ["yes"], 1.0),
        ("Yes", ["yes"], 0.0),
        ("yes", ["yes", "no", "no"], 1 / 3),
        ("no", ["no"] * 5, 1.0),
    ],
)
def test_exact_match(prediction: str, answers: list[str], score: float):
    assert exact_match(prediction, {"answers": answers}) == pytest.approx(score)


SEG = "".join(f"<seg{i:03d}>" for i in range(16))


def _everything(ids):
    assert list(ids) == list(range(16))
    return np.ones((64, 64), np.float32)


def test_box_of_ones_against_a_rectangle():
    truth = np.zeros((50, 40), bool)
    truth[10:30, 8:24] = True
    # 1023 * 10 / 50 = 204.6 and so on, rounded up so that the cut to pixels keeps the row.
    loc = "<loc0205><loc0205><loc0614><loc0614>"
    assert mask_iou(loc + SEG, truth, _everything) == 1.0
    half = "<loc0205><loc0205><loc0410><loc0614>"
    assert mask_iou(half + SEG, truth, _everything) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "text",
    ["", "red", "<loc0205><loc0205><loc0614>" + SEG, "<loc0614><loc0205><loc0205><loc0614>" + SEG],
)
def test_malformed_masks_score_zero(text: str):
    assert mask_iou(text, np.ones((5, 7), bool), _everything) == 0.0


def test_miou_reads_the_record():
    truth = np.zeros((50, 40), bool)
    truth[10:30, 8:24] = True
    metric = get_metric("miou")
    assert metric.reads_masks
    fields = {"masks": (encode_mask(truth),), "decode_mask": _everything}
    assert metric.score("<loc0205><loc0205><loc0614><loc0614>" + SEG, fields) == 1.0


def test_unknown_metric_lists_those_there_are():
    with pytest.raises(ValueError, match="exact_match, miou, relaxed_accuracy, got 'bleu'"):
        get_metric("bleu")
