"""`--check`: references made elsewhere pass, and anything else does not."""

import dataclasses

import numpy as np
import pytest

from model.decode.reference_check import (
    REFERENCE_TOLERANCE,
    compare_outputs,
    relative_error,
    uncompared_outputs,
)
from tests.model import parity_models
from tests.model.checkpoint.converted import ODD, random_params

IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, 3, 15, 15)).astype(np.float32)
TEXT = {"prefix_ids": np.array([[2, 5, 7]] * 2), "suffix_ids": np.array([[9, 4]] * 2)}


@pytest.mark.parity
@pytest.mark.parametrize("name", ["hugging_face", "big_vision"])
def test_references_are_met_and_a_moved_weight_is_seen(name):
    reference = getattr(parity_models, name)()
    # The check decides on the cap itself, whatever the checkpoint has.
    model = dataclasses.replace(reference.cfg, final_softcap=30.0)
    findings = list(compare_outputs(model, reference.params, reference.expected))
    outputs = {"logits", "greedy_ids"} | (
        {"vision_last_hidden", "projected_soft_tokens", "loss"}
        if name == "hugging_face"
        else {"soft_tokens", "video_logits"}
    )
    assert {finding.key for finding in findings} == outputs
    assert all(finding.close for finding in findings)
    assert uncompared_outputs(reference.expected) == []
    kernel = reference.params["projector"]["kernel"].copy()
    kernel[3] *= 1.01
    params = {**reference.params, "projector": {**reference.params["projector"], "kernel": kernel}}
    wrong = {f.key for f in compare_outputs(model, params, reference.expected) if not f.close}
    assert {"logits"} < wrong
    assert "vision_last_hidden" not in wrong


def test_relative_error_forgives_only_what_is_near_zero():
    expected = np.array([1.0, -1.0, 1e-9])
    assert relative_error(expected, expected) == 0
    assert relative_error(np.array([1.0, -1.0, 1e-6]), expected) < 1e-5
    assert relative_error(expected * [1 + 3e-4, 1, 1], expected) > REFERENCE_TOLERANCE
    assert relative_error(expected[:2], expected) == np.inf
    assert not relative_error(np.array([np.nan]), np.array([1.0])) <= REFERENCE_TOLERANCE


def test_an_image_of_another_size_is_told():
    images = {"pixel_values_nchw": IMAGES[:, :, :10]}
    expected = {**images, **TEXT, "logits": np.zeros((2, 5, 41))}
    with pytest.raises(ValueError, match="images must be 15 x 15 x 3"):
        list(compare_outputs(ODD, random_params(ODD), expected))


def test_missing_inputs_and_outputs_are_told():
    with pytest.raises(ValueError, match=r"must hold the inputs \['pixel_values_nchw'\]"):
        list(compare_outputs(ODD, {}, TEXT))
    with pytest.raises(ValueError, match="must hold outputs"):
        list(compare_outputs(ODD, {}, {"pixel_values_nchw": IMAGES, **TEXT, "other": np.zeros(3)}))
    assert uncompared_outputs({**TEXT, "other": np.zeros(3)}) == ["other"]
