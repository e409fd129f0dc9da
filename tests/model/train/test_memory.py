"""A step's memory by formula: what lies in parts, what each device has whole, what waits."""

import dataclasses

import pytest

from model import vlm
from model.checkpoint.digest import flatten_params
from model.train.config import TrainConfig
from model.train.memory import gathered_bytes, step_bytes
from tests.model.tiny_model import tiny_model

MODEL = tiny_model("parcel", (30, 64))
NUM_PARAMS = sum(leaf.size for _, leaf in flatten_params(vlm.abstract_params(MODEL)))


def held(model=MODEL, *, batch_size=8, devices=1, tokens=64, **settings):
    train = TrainConfig(batch_size=batch_size, text_len=16, **settings)
    return step_bytes(model, train, tokens, devices=devices)


def test_examples_add_alike_and_the_rest_is_state_and_gathered_weights():
    each = held(batch_size=2) - held(batch_size=1)
    assert held(batch_size=9) == pytest.approx(held(batch_size=1) + 8 * each)
    rest, split = (held(batch_size=n) - held(batch_size=2 * n) + held(batch_size=n) for n in (1, 1))
    assert rest == split
    # Of float32: parameters, two moments, gradients; on two devices half of them.
    whole, halves = (held(batch_size=d, devices=d) - each for d in (1, 2))
    assert whole - halves == pytest.approx(16 * NUM_PARAMS / 2)
    copies = held(batch_size=2, devices=2, num_replicas=2) - each
    assert copies == pytest.approx(whole)


def test_more_is_kept_where_less_is_made_again():
    kept = [held(dataclasses.replace(MODEL, remat=how)) for how in ("full", "minimal", "none")]
    assert kept == sorted(kept)
    assert len(set(kept)) == 3
    assert held(tokens=30) < held(tokens=64)


def test_a_frozen_image_side_has_no_moments_in_any_of_its_parts():
    side = sum(
        leaf.size
        for path, leaf in flatten_params(vlm.abstract_params(MODEL))
        if not path.startswith("text/")
    )
    model = dataclasses.replace(MODEL, remat="full")

    def less(batch_size: int) -> float:
        whole = held(model, batch_size=batch_size)
        return whole - held(model, batch_size=batch_size, freeze_vision="all")

    assert 2 * less(8) - less(16) == pytest.approx(12 * side)


def test_frozen_parameters_have_neither_moments_nor_gradients():
    tower = sum(
        leaf.size
        for path, leaf in flatten_params(vlm.abstract_params(MODEL))
        if path.startswith("vision/")
    )
    model = dataclasses.replace(MODEL, remat="full")

    def less(batch_size: int) -> float:
        """What freezing the tower spares."""
        whole = held(model, batch_size=batch_size)
        return whole - held(model, batch_size=batch_size, freeze_vision=True)

    assert 2 * less(8) - less(16) == pytest.approx(12 * tower)
    # Nor is the input of each block kept, in bfloat16, for a backward pass that ends before it.
    vision = MODEL.vision
    kept = 2 * vision.num_patches * vision.width * vision.depth
    assert less(16) - less(8) == pytest.approx(8 * kept)


def test_weights_pass_twice_in_half_precision_and_gradients_once_in_full():
    assert gathered_bytes(MODEL) == 8 * NUM_PARAMS


def test_a_class_token_is_kept_and_an_output_matrix_is_a_second_table():
    vision = dataclasses.replace(MODEL.vision, family="clip")
    text = dataclasses.replace(MODEL.text, tied=False)
    table = text.vocab_size * text.width
    # Four float32 numbers each, and whole on the device in bfloat16 and as a float32 gradient.
    untied = held(dataclasses.replace(MODEL, text=text)) - held()
    assert untied == pytest.approx((16 + 2 + 4) * table)
    # Of a token of a block, so much waits for the backward pass without recomputation.
    clip = dataclasses.replace(MODEL, vision=vision)
    more = (held(clip, batch_size=16) - held(clip)) - (held(batch_size=16) - held())
    token = 2 * (8 * vision.width + 2 * vision.mlp_dim)
    assert more >= 8 * vision.depth * token
