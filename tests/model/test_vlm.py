"""The whole model: size, equal starts, equal forms, masks, losses."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from model import presets, vlm
from model.attention import MASKED, attention
from model.connector.config import ConnectorConfig
from model.text.loss import smoothed_losses
from tests.model.tiny_models import (
    TEXT,
    batch,
    init_params,
    loss_and_gradient,
    text_logits,
    tiny_config,
    token_losses,
)


def _count(tree: vlm.Params) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def _with(text: np.ndarray, slot: int) -> np.ndarray:
    """Returns the text with another token at `slot`."""
    changed = text.copy()
    changed[0, slot] = (changed[0, slot] + 1) % TEXT.vocab_size
    return changed


def test_paligemma2_3b_has_the_published_number_of_parameters():
    shapes = vlm.abstract_params(presets.paligemma2_3b())
    assert _count(shapes) == 3_032_094_960
    assert _count(shapes["vision"]) == 412_442_352
    assert _count(shapes["projector"]) == 2_656_512
    assert _count(shapes["text"]) == 2_616_996_096


def test_parcel_adds_21_million_parameters():
    shapes = vlm.abstract_params(presets.paligemma2_3b(ConnectorConfig(kind="parcel")))
    assert shapes["connector"]["queries"].shape == (192, 1152)
    assert round(_count(shapes["connector"]) / 1e6, 1) == 20.8


def test_methods_start_from_the_same_shared_parameters():
    started = {kind: init_params(tiny_config(kind), 11) for kind in ("vanilla", "parcel")}
    for part in ("vision", "text", "projector"):
        pairs = zip(*(jax.tree.leaves(p[part]) for p in started.values()), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)
    other = init_params(tiny_config("vanilla"), 12)
    assert not np.array_equal(other["text"]["embedding"], started["vanilla"]["text"]["embedding"])


@pytest.mark.slow
def test_scanned_and_recomputed_equals_unrolled():
    unrolled = tiny_config("parcel")
    scanned = dataclasses.replace(unrolled, scan_layers=True, remat=True)
    params = init_params(unrolled, 0)
    loss, gradient = loss_and_gradient(unrolled, params, vlm.Slots(62, 40))
    other, other_gradient = loss_and_gradient(scanned, params, vlm.Slots(62, 40))
    assert_allclose(loss, other, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(other_gradient), strict=True):
        assert_allclose(a, b, rtol=1e-4, atol=1e-6)


SIXTEEN = vlm.Slots(16, 16)
UNCAPPED = {"attn_softcap": 0.0, "final_softcap": 0.0}


@pytest.mark.parametrize("changes", [{}, pytest.param(UNCAPPED, marks=pytest.mark.slow)])
def test_losses_are_those_of_the_logits(changes: dict):
    cfg, data = tiny_config("m3", **changes), batch()
    params, graph = init_params(cfg, 1), vlm.structure(cfg)
    losses = token_losses(graph, params, data, SIXTEEN)
    logs = jax.nn.log_softmax(text_logits(graph, params, data.prompt, SIXTEEN))
    expected = -jnp.take_along_axis(logs, data.text[:, 1:, None], axis=-1)[..., 0]
    wanted = np.asarray(data.mask_loss[:, 1:]) > 0
    assert_allclose(np.asarray(losses)[wanted], np.asarray(expected)[wanted], rtol=1e-5)
    assert np.all(np.asarray(losses)[~wanted] == 0.0)


def test_suffix_is_causal_and_prefix_is_not():
    cfg, data = tiny_config("m3"), batch()
    params, graph = init_params(cfg, 1), vlm.structure(cfg)

    def logits(text: np.ndarray) -> np.ndarray:
        prompt = vlm.Prompt(data.images[1:], text, mask_ar=data.mask_ar[1:, :10])
        return np.asarray(text_logits(graph, params, prompt, vlm.Slots(4, 4)))[0]

    text = data.text[1:, :10]
    before = logits(text)
    suffix_changed = logits(_with(text, 8))
    np.testing.assert_allclose(suffix_changed[:8], before[:8], rtol=1e-5, atol=1e-6)
    assert np.abs(suffix_changed[8:] - before[8:]).max(axis=1).min() > 1e-4
    prefix_changed = logits(_with(text, 4))
    assert np.abs(prefix_changed - before).max(axis=1).min() > 1e-5


def test_bytes_are_scaled_as_pixels_are():
    cfg = tiny_config("vanilla")
    params, graph = init_params(cfg, 1), vlm.structure(cfg)
    run = jax.jit(functools.partial(vlm.image_features, graph))
    raw = np.random.default_rng(0).integers(0, 256, (1, 1, 32, 32, 3)).astype(np.uint8)
    scaled = jnp.asarray(raw.astype(np.float32) / 127.5 - 1.0)
    features = [run(params, x) for x in (jnp.asarray(raw), scaled)]
    assert_allclose(features[0], features[1], rtol=1e-4, atol=1e-5)


def test_label_smoothing_is_zero_at_its_own_optimum():
    best = jnp.log(jnp.array([[[0.9, 0.05, 0.05]]]))
    assert_allclose(smoothed_losses(best, jnp.array([[0]]), 0.1), [[0.0]], atol=1e-6)
    plain = smoothed_losses(best, jnp.array([[1]]), 0.0)
    assert_allclose(plain, [[-np.log(0.05)]], rtol=1e-6)


@pytest.mark.parametrize("cap", [0.0, 2.0])
def test_attention_and_its_gradient_equal_the_textbook(cap: float):
    q, k, v = (
        jax.random.normal(jax.random.key(i), (2, 3, n, 5)) for i, n in enumerate((7, 11, 11))
    )
    mask = jax.random.bernoulli(jax.random.key(9), 0.6, (2, 1, 11, 7)).at[:, :, 0].set(True)

    def ours(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attention(q.swapaxes(2, 3), k, v.swapaxes(2, 3), mask, cap).swapaxes(2, 3)

    def textbook(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        logits = jnp.einsum("bknh,bksh->bkns", q, k)
        logits = cap * jnp.tanh(logits / cap) if cap else logits
        logits = jnp.where(mask.swapaxes(2, 3), logits, MASKED)
        return jnp.einsum("bkns,bksh->bknh", jax.nn.softmax(logits), v)

    assert_allclose(ours(q, k, v), textbook(q, k, v), rtol=1e-5, atol=1e-6)
    gradients = [
        jax.grad(lambda *a, f=f: jnp.sum(jnp.sin(f(*a))), argnums=(0, 1, 2))(q, k, v)
        for f in (ours, textbook)
    ]
    for a, b in zip(*gradients, strict=True):
        assert_allclose(a, b, rtol=1e-4, atol=1e-6)
