"""Our model against transformers' and big_vision's, from the same weights."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from model import vlm
from model.decode.generate import generate
from tests.model import parity_models
from tests.model.parity_models import Reference

pytestmark = pytest.mark.parity
SLOTS = vlm.Slots(64, 64)  # the patches of a 112 px image: what the vanilla connector hands on


@pytest.fixture(
    scope="module", params=["scanned", pytest.param("unrolled", marks=pytest.mark.slow)]
)
def hugging_face(request: pytest.FixtureRequest) -> Reference:
    return _variant(parity_models.hugging_face(), request.param)


@pytest.fixture(
    scope="module", params=["scanned", pytest.param("unrolled", marks=pytest.mark.slow)]
)
def big_vision(request: pytest.FixtureRequest) -> Reference:
    return _variant(parity_models.big_vision(), request.param)


def _variant(reference: Reference, layers: str) -> Reference:
    scanned = layers == "scanned"
    cfg = dataclasses.replace(
        reference.cfg, scan_layers=scanned, remat="full" if scanned else "none"
    )
    return dataclasses.replace(reference, cfg=cfg)


def _pixels(reference: Reference) -> jax.Array:
    expected = reference.expected
    if "image_nhwc" in expected:
        return jnp.asarray(expected["image_nhwc"])[:, None]
    return jnp.asarray(expected["pixel_values_nchw"].transpose(0, 2, 3, 1))[:, None]


def _text(reference: Reference) -> tuple[jax.Array, jax.Array]:
    prefix, suffix = reference.expected["prefix_ids"], reference.expected["suffix_ids"]
    text = np.concatenate([prefix, suffix], axis=1).astype(np.int32)
    mask_ar = np.concatenate([np.zeros_like(prefix), np.ones_like(suffix)], axis=1)
    return jnp.asarray(text), jnp.asarray(mask_ar.astype(np.int32))


def _logits(reference: Reference, images: jax.Array) -> jax.Array:
    text, mask_ar = (a[: images.shape[0]] for a in _text(reference))
    run = jax.jit(functools.partial(vlm.text_logits, vlm.structure(reference.cfg)))
    return run(reference.params, vlm.Prompt(images, text, mask_ar=mask_ar), SLOTS)


def _greedy(reference: Reference, num_tokens: int, causal: bool) -> np.ndarray:
    prompt = jnp.asarray(reference.expected["prefix_ids"].astype(np.int32))
    padded = jnp.pad(prompt, ((0, 0), (0, 3)))
    is_real = jnp.broadcast_to(jnp.arange(padded.shape[1]) < prompt.shape[1], padded.shape)
    return np.asarray(
        generate(
            vlm.structure(reference.cfg),
            reference.params,
            vlm.Prompt(_pixels(reference), padded, is_real),
            SLOTS,
            max_new_tokens=num_tokens,
            stop=None,
            causal=causal,
        )
    )


def test_hugging_face_vision_and_soft_tokens(hugging_face: Reference):
    graph, expected = vlm.structure(hugging_face.cfg), hugging_face.expected
    run = jax.jit(functools.partial(vlm.image_features, graph))
    features = run(hugging_face.params, _pixels(hugging_face))
    assert_allclose(features[:, 0], expected["vision_last_hidden"], rtol=1e-4, atol=5e-5)
    run = jax.jit(functools.partial(vlm.soft_tokens, graph))
    soft, valid = run(hugging_face.params, _pixels(hugging_face), SLOTS)
    assert_allclose(soft, expected["projected_soft_tokens"], rtol=1e-4, atol=1e-5)
    assert bool(valid.all())


def test_hugging_face_logits(hugging_face: Reference):
    logits = _logits(hugging_face, _pixels(hugging_face))
    assert_allclose(logits, hugging_face.expected["logits"], rtol=1e-4, atol=1e-5)


def test_hugging_face_loss(hugging_face: Reference):
    text, mask_ar = _text(hugging_face)
    run = jax.jit(functools.partial(vlm.token_losses, vlm.structure(hugging_face.cfg)))
    example = vlm.Example(_pixels(hugging_face), text, mask_ar=mask_ar, mask_loss=mask_ar)
    losses = run(hugging_face.params, example, SLOTS)
    loss = jnp.sum(losses) / jnp.sum(mask_ar[:, 1:]).astype(jnp.float32)
    assert_allclose(loss, hugging_face.expected["loss"], rtol=1e-4)


def test_hugging_face_greedy_tokens(hugging_face: Reference):
    # Made by `generate` without `token_type_ids`, so transformers took everything as causal.
    expected = hugging_face.expected["greedy_ids"]
    ours = _greedy(hugging_face, expected.shape[1], causal=True)
    np.testing.assert_array_equal(ours, expected)


def test_big_vision_soft_tokens(big_vision: Reference):
    run = jax.jit(functools.partial(vlm.soft_tokens, vlm.structure(big_vision.cfg)))
    soft, _ = run(big_vision.params, _pixels(big_vision), SLOTS)
    assert_allclose(soft, big_vision.expected["soft_tokens"], rtol=1e-4, atol=1e-5)


def test_big_vision_logits(big_vision: Reference):
    logits = _logits(big_vision, _pixels(big_vision))
    assert_allclose(logits, big_vision.expected["logits"], rtol=1e-4, atol=1e-5)


def test_big_vision_video_logits(big_vision: Reference):
    logits = _logits(big_vision, jnp.asarray(big_vision.expected["video_btHWC"]))
    assert_allclose(logits, big_vision.expected["video_logits"], rtol=1e-4, atol=1e-5)


def test_big_vision_greedy_tokens(big_vision: Reference):
    expected = big_vision.expected["greedy_ids"]
    ours = _greedy(big_vision, expected.shape[1], causal=False)
    np.testing.assert_array_equal(ours, expected)
