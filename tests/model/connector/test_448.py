"""At twice the resolution: 32 x 32 patches, three numbers of anchors, pairs and videos."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import vlm
from model.config import ModelConfig
from model.connector import budgets
from tests.model.connector.test_elastic import assert_equals_truncation
from tests.model.tiny_models import VISION, batch, init_params, tiny_config


def at_448(kind: str) -> ModelConfig:
    return tiny_config(kind, vision=dataclasses.replace(VISION, depth=1, image_px=64))


@pytest.mark.parametrize(("budget", "anchors"), [(16, 16), (62, 16), (64, 64), (256, 256)])
def test_every_frame_has_its_own_budget_and_anchors(budget: int, anchors: int):
    cfg = at_448("parcel")
    bucket = budgets.bucket_of(cfg, budget)
    assert (bucket.num_anchors, cfg.vision.num_patches) == (anchors, 1024)
    run = functools.partial(vlm.soft_tokens, vlm.structure(cfg))
    images = jax.ShapeDtypeStruct((2, 3, 64, 64, 3), jnp.float32)
    tokens, valid = jax.eval_shape(
        run, vlm.abstract_params(cfg), images, vlm.Slots(bucket.size, budget)
    )
    assert tokens.shape == (2, 3 * bucket.size, cfg.text.width)
    assert valid.shape == (2, 3 * bucket.size)


@pytest.mark.slow
def test_soft_tokens_of_a_pair_are_those_of_its_images():
    cfg = at_448("parcel")
    params, graph = init_params(cfg, 3), vlm.structure(cfg)
    images = jnp.asarray(batch(num_images=2, px=64).images)
    run = jax.jit(functools.partial(vlm.soft_tokens, graph))
    pair, valid = run(params, images, vlm.Slots(62, 40))
    assert np.asarray(valid).sum(axis=1).tolist() == [80, 80]
    for i in range(2):
        own = slice(62 * i, 62 * i + 40)
        alone, _ = run(params, images[:, i : i + 1], vlm.Slots(62, 40))
        np.testing.assert_allclose(pair[:, own], alone[:, :40], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("num_images", "budget"), [(2, 258), (3, 100)])
def test_masking_equals_truncation_for_pairs_and_videos(num_images: int, budget: int):
    cfg = at_448("parcel")
    bucket = budgets.bucket_of(cfg, budget).size
    data = batch(num_images=num_images, lengths=(11, 6), px=64)
    assert_equals_truncation(cfg, budget, bucket, data)
