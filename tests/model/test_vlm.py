"""The whole model: size, equal starts, equal forms, masks, losses."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from model import presets, vlm
from model.attention import MASKED, MAX_BLOCK, by_einsum, by_rows
from model.connector.config import ConnectorConfig
from model.prompt.template import BEFORE_IMAGES
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


@pytest.mark.slow
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
    scanned = dataclasses.replace(unrolled, scan_layers=True, remat="full")
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


@pytest.mark.slow
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_and_its_gradient_are_those_of_the_logits(smoothing: float):
    cfg, data = tiny_config("m3"), batch()
    params, graph = init_params(cfg, 1), vlm.structure(cfg)
    weights = data.mask_loss[:, 1:] * np.linspace(0.5, 2.0, 10, dtype=np.float32)

    def chunked(params: vlm.Params) -> jax.Array:
        return 3 * vlm.loss(graph, params, data, SIXTEEN, weights, label_smoothing=smoothing)

    def whole(params: vlm.Params) -> jax.Array:
        logits = vlm.text_logits(graph, params, data.prompt, SIXTEEN)
        return 3 * jnp.sum(weights * smoothed_losses(logits, data.text[:, 1:], smoothing))

    one, gradient = jax.jit(jax.value_and_grad(chunked))(params)
    other, expected = jax.jit(jax.value_and_grad(whole))(params)
    assert_allclose(one, other, rtol=1e-5)
    assert_allclose(jax.jit(chunked)(params), one, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        assert_allclose(a, b, rtol=1e-4, atol=3e-6)


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


def test_a_causal_template_sees_what_is_read_before_and_no_masked_slot():
    cfg, data = tiny_config("mqt", prompt="llava"), batch()
    params, graph = init_params(cfg, 1), vlm.structure(cfg)
    text, before = np.asarray(data.text[1:, :10]), np.arange(10)[None] < 3
    before = np.where(before, BEFORE_IMAGES, 0)

    def logits(text: np.ndarray, images: np.ndarray, slots: vlm.Slots) -> np.ndarray:
        prompt = vlm.Prompt(images, text, mask_ar=before)
        return np.asarray(text_logits(graph, params, prompt, slots))[0]

    images, usual = np.asarray(data.images[1:]), vlm.Slots(8, 4)
    reference = logits(text, images, usual)
    np.testing.assert_allclose(reference, logits(text, images, vlm.Slots(4, 4)), atol=1e-5)

    def changed(text: np.ndarray, images: np.ndarray) -> list[bool]:
        return [*(np.abs(logits(text, images, usual) - reference).max(axis=1) > 1e-5)]

    # A token changes itself and what is read after it; the images, all text but that before them.
    assert changed(_with(text, 1), images) == [False] + [True] * 9
    assert changed(_with(text, 6), images) == [False] * 6 + [True] * 4
    assert changed(text, images[:, ::-1]) == [False] * 3 + [True] * 7


@pytest.mark.parametrize("prompt", ["llava", "paligemma"])
def test_text_alone_is_read_as_with_all_slots_masked(prompt: str):
    cfg, data = tiny_config("mqt", prompt=prompt), batch()
    params, graph = init_params(cfg, 1), vlm.structure(cfg)
    ar = np.where(np.arange(11) < 3, BEFORE_IMAGES, data.mask_ar) if prompt == "llava" else None
    with_slots = data if ar is None else data._replace(mask_ar=ar)
    alone = data._replace(images=data.images[:, :0])
    masked = text_logits(graph, params, with_slots.prompt, vlm.Slots(8, 0))
    absent = text_logits(graph, params, alone.prompt, vlm.Slots(8, 8))
    np.testing.assert_allclose(absent, masked, atol=1e-5)
    # Nothing of the images is learned from it, and of the text what is learned beside masked ones.
    loss, gradient = loss_and_gradient(cfg, params, vlm.Slots(8, 8), alone)
    same_loss, same_gradient = loss_and_gradient(cfg, params, vlm.Slots(8, 0), with_slots)
    np.testing.assert_allclose(loss, same_loss, atol=1e-5)
    for part in ("vision", "connector", "projector"):
        assert all(not leaf.any() for leaf in jax.tree.leaves(gradient[part])), part
    assert_allclose = functools.partial(np.testing.assert_allclose, atol=1e-5)
    jax.tree.map(assert_allclose, gradient["text"], same_gradient["text"])
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient["text"])) > 1e-3


def test_bytes_are_scaled_as_pixels_are():
    cfg = tiny_config("vanilla")
    params, graph = init_params(cfg, 1), vlm.structure(cfg)
    run = jax.jit(functools.partial(vlm.image_features, graph))
    raw = np.random.default_rng(0).integers(0, 256, (1, 1, 32, 32, 3)).astype(np.uint8)
    scaled = jnp.asarray(raw.astype(np.float32) / 127.5 - 1.0)
    features = [run(params, x) for x in (jnp.asarray(raw), scaled)]
    assert_allclose(features[0], features[1], rtol=1e-4, atol=1e-5)


def test_label_smoothing_leaves_the_entropy_of_its_targets_at_its_optimum():
    shares = np.array([0.9, 0.05, 0.05])
    best = jnp.log(jnp.array([[shares]]))
    entropy = -(shares * np.log(shares)).sum()
    assert_allclose(smoothed_losses(best, jnp.array([[0]]), 0.1), [[entropy]], rtol=1e-6)
    plain = smoothed_losses(best, jnp.array([[1]]), 0.0)
    assert_allclose(plain, [[-np.log(0.05)]], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("cap", [0.0, 2.0])
@pytest.mark.parametrize("ours", [by_rows, by_einsum])
def test_attention_and_its_gradient_equal_the_textbook(ours: Callable, cap: float):
    # Two groups of three heads: a key head serves one group.
    q = jax.random.normal(jax.random.key(0), (2, 7, 2, 3, 5))
    k, v = (jax.random.normal(jax.random.key(i), (2, 11, 2, 5)) for i in (1, 2))
    mask = jax.random.bernoulli(jax.random.key(9), 0.6, (2, 7, 11)).at[:, :, 0].set(True)
    _check_attention(ours, q, k, v, mask, cap)


@pytest.mark.parametrize("same_for_all", [False, True])
def test_attention_of_many_queries_equals_the_textbook_block_by_block(same_for_all: bool):
    # Three blocks, of which the last is not full.
    length = 2 * MAX_BLOCK + 71
    q = jax.random.normal(jax.random.key(0), (1, length, 2, 3, 5))
    k, v = (jax.random.normal(jax.random.key(i), (1, 11, 2, 5)) for i in (1, 2))
    shape = (1, 1 if same_for_all else length, 11)
    mask = jax.random.bernoulli(jax.random.key(9), 0.6, shape).at[:, :, 0].set(True)
    _check_attention(by_einsum, q, k, v, mask, 2.0)


def test_attention_never_holds_the_logits_of_more_queries_than_a_block():
    queries, keys = (1, 8 * MAX_BLOCK, 1, 2, 4), (1, 64, 1, 4)
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (queries, keys, keys)]

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(by_einsum(q, k, v, None, 2.0)))

    # Axes of the heads, then queries, then keys.
    program = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*arrays).as_text()
    assert f"tensor<1x1x2x{MAX_BLOCK}x64xf32>" in program
    assert f"x{8 * MAX_BLOCK}x64xf32>" not in program


def _check_attention(
    ours: Callable, q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array, cap: float
) -> None:
    """Checks outputs and gradients for two groups of three heads."""

    def attended(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return ours(q, k, v, mask, cap)

    def textbook(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        heads = []
        for head in range(6):
            logits = jnp.einsum("bnh,bsh->bns", q[:, :, head // 3, head % 3], k[:, :, head // 3])
            logits = cap * jnp.tanh(logits / cap) if cap else logits
            weights = jax.nn.softmax(jnp.where(mask, logits, MASKED))
            heads.append(jnp.einsum("bns,bsh->bnh", weights, v[:, :, head // 3]))
        return jnp.stack(heads, axis=2).reshape(q.shape)

    assert_allclose(attended(q, k, v), textbook(q, k, v), rtol=1e-5, atol=1e-6)
    gradients = [
        jax.grad(lambda *a, f=f: jnp.sum(jnp.sin(f(*a))), argnums=(0, 1, 2))(q, k, v)
        for f in (attended, textbook)
    ]
    for a, b in zip(*gradients, strict=True):
        assert_allclose(a, b, rtol=1e-4, atol=1e-5)
