"""A budget inside a larger bucket gives the loss and gradients of exact truncation."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from model import vlm
from model.config import ModelConfig
from model.connector import budgets
from tests.model.tiny_models import (
    ELASTIC_KINDS,
    POOLED_KINDS,
    VISION,
    batch,
    init_params,
    loss_and_gradient,
    tiny_config,
)
from tests.slices import day_slice


def few_programs(kind: str) -> ModelConfig:
    """A shallow model with two buckets at most, so that most of a test is not compiling."""
    cfg = tiny_config(kind, vision=dataclasses.replace(VISION, depth=1))
    edges = [b.size for b in budgets.buckets(cfg) if b.num_anchors == 16 and b.size < 64]
    sizes = (62, 256) if kind in ("parcel", "parcel_vit_only", "parcel_dual") and edges else (256,)
    return dataclasses.replace(cfg, connector=dataclasses.replace(cfg.connector, buckets=sizes))


def assert_equals_truncation(cfg: ModelConfig, budget: int, bucket: int, data: vlm.Example) -> None:
    params = init_params(cfg, 3)
    loss, gradient = loss_and_gradient(cfg, params, vlm.Slots(bucket, budget), data)
    exact, exact_gradient = loss_and_gradient(cfg, params, vlm.Slots(budget, budget), data)
    assert_allclose(loss, exact, rtol=1e-5)
    assert jax.tree.structure(gradient) == jax.tree.structure(exact_gradient)
    # Float32 keeps 7 digits of the whole: of a part a hundredth of its size, the 5 asked for here.
    # What is smaller (keys' biases are zero up to rounding) is measured against that.
    ours, theirs = ([np.asarray(a) for a in jax.tree.leaves(g)] for g in (gradient, exact_gradient))
    whole = np.sqrt(sum(np.sum(np.square(a)) for a in theirs))
    for a, b in zip(ours, theirs, strict=True):
        scale = max(np.linalg.norm(b), 1e-2 * whole)
        assert np.linalg.norm(a - b) <= 1e-5 * scale


@pytest.mark.slow
def test_masking_equals_truncation():
    assert_equals_truncation(few_programs("parcel"), 70, 96, batch(num_images=1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", day_slice(ELASTIC_KINDS, ["mqt", "parcel"]))
def test_masking_equals_truncation_at_any_budget_of_ragged_text_and_video(kind: str):
    cfg = few_programs(kind)
    lengths = st.tuples(*[st.integers(min_value=6, max_value=11)] * 2)

    @settings(max_examples=2, derandomize=True)
    @given(budget=st.sampled_from(budgets.supported_budgets(cfg)), lengths=lengths)
    def check(budget: int, lengths: tuple[int, int]) -> None:
        frames = batch(num_images=3, lengths=lengths)
        assert_equals_truncation(cfg, budget, budgets.bucket_of(cfg, budget).size, frames)

    check()


@pytest.mark.parametrize("kind", POOLED_KINDS)
@pytest.mark.parametrize("px", [32, 64])
def test_methods_without_queries_run_the_truncated_program_itself(kind: str, px: int):
    cfg = tiny_config(kind, vision=dataclasses.replace(VISION, image_px=px))
    for budget in budgets.supported_budgets(cfg):
        assert budgets.bucket_of(cfg, budget) == budgets.exact_bucket(cfg, budget)


def test_the_other_slots_do_reach_the_loss_when_not_masked():
    cfg, data = few_programs("parcel"), batch(num_images=1)
    params = init_params(cfg, 3)
    masked, _ = loss_and_gradient(cfg, params, vlm.Slots(96, 70), data)
    unmasked, _ = loss_and_gradient(cfg, params, vlm.Slots(96, 96), data)
    assert abs(float(masked - unmasked)) > 1e-4
