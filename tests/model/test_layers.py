"""Every layer alone: float32 against formulas in float64, to 1e-5 of the largest activation."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model import vlm
from model.checkpoint.digest import flatten_params
from model.text.attention import rotation
from model.vision.layers import add_row, repeat_rows
from tests.model import layer_formulas, parity_models
from tests.model.parity_models import Reference
from tests.model.tiny_models import init_params, tiny_config

TOLERANCE = 1e-5


def _tiny() -> Reference:
    cfg = tiny_config("vanilla", attn_softcap=5.0)
    rng = np.random.default_rng(1)
    moved = jax.tree.map(  # Biases and scales start at 0 and 1, which would hide mistakes.
        lambda leaf: np.asarray(leaf) + 0.3 * rng.standard_normal(leaf.shape, np.float32),
        init_params(cfg, 1),
    )
    return Reference(cfg, moved, {})


@pytest.fixture(
    scope="module",
    params=[
        _tiny,
        pytest.param(parity_models.hugging_face, marks=pytest.mark.parity),
        pytest.param(parity_models.big_vision, marks=pytest.mark.parity),
    ],
    ids=["tiny", "hugging_face", "big_vision"],
)
def reference(request: pytest.FixtureRequest) -> Reference:
    return request.param()


def _close(ours: jax.Array, expected: np.ndarray) -> None:
    worst = np.abs(np.asarray(ours, np.float64) - expected).max() / np.abs(expected).max()
    assert worst < TOLERANCE


def _layers(tree: vlm.Params):
    depth = jax.tree.leaves(tree)[0].shape[0]
    return [
        jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i], np.float64), tree) for i in range(depth)
    ]


@pytest.mark.slow
def test_siglip_blocks(reference: Reference):
    vision = reference.cfg.vision
    model = vlm.merge(vlm.structure(reference.cfg), reference.params)
    x = np.random.default_rng(2).standard_normal((2, vision.num_patches, vision.width))
    for i, params in enumerate(_layers(reference.params["vision"]["blocks"])):
        block = jax.tree.map(lambda leaf, i=i: leaf[i], model.vision.blocks)
        expected = layer_formulas.siglip_block(params, x, vision.num_heads)
        _close(block(jnp.asarray(x, jnp.float32)), expected)
        x = expected


@pytest.mark.slow
@pytest.mark.parametrize("cap", [0.0, 5.0])
def test_gemma_blocks(reference: Reference, cap: float):
    text, length, prefix = reference.cfg.text, 13, 8
    model = vlm.merge(vlm.structure(reference.cfg), reference.params)
    x = np.random.default_rng(3).standard_normal((2, length, text.width))
    places = np.stack([np.arange(length), np.maximum(np.arange(length) - 2, 0)])
    seen = np.arange(length)[None] <= np.maximum(np.arange(length), prefix - 1)[:, None]
    mask = np.stack([seen, seen])
    turn = rotation(jnp.asarray(places, jnp.int32), text.head_dim, text.rope_base)
    formula = functools.partial(layer_formulas.gemma_block, head_dim=text.head_dim, cap=cap)
    for i, params in enumerate(_layers(reference.params["text"]["blocks"])):
        block = jax.tree.map(lambda leaf, i=i: leaf[i], model.text.blocks)
        expected = formula(params, x, places, mask)
        ours, _ = block(jnp.asarray(x, jnp.float32), turn, jnp.asarray(mask), cap=cap)
        _close(ours, expected)
        x = expected


def test_embedding_and_logits(reference: Reference):
    cfg = dataclasses.replace(reference.cfg, final_softcap=3.0)
    model = vlm.merge(vlm.structure(cfg), reference.params)
    table = np.asarray(reference.params["text"]["embedding"], np.float64)
    tokens = np.array([[0, 3, len(table) - 1]], np.int32)
    expected = table[tokens] * np.sqrt(cfg.text.width)
    _close(model.text.embed(jnp.asarray(tokens), dtype=jnp.float32), expected)
    capped = 3.0 * np.tanh(expected @ table.T / 3.0)
    _close(model.text.logits(jnp.asarray(expected, jnp.float32)), capped)


def test_sums_over_a_batch_are_made_in_float32():
    rng = np.random.default_rng(0)
    # 8,192 terms: a sum in bfloat16 would stop growing at 256 times the size of a term.
    shape = (64, 128, 12)
    x = jnp.asarray(rng.normal(size=shape), jnp.bfloat16)
    slope = jnp.asarray(rng.normal(size=shape) + 0.3, jnp.bfloat16)
    exact = np.asarray(slope, np.float64)

    def gradient(rows: np.ndarray, compute) -> np.ndarray:
        def total(rows: jax.Array) -> jax.Array:
            return jnp.sum(compute(rows).astype(jnp.float32) * slope.astype(jnp.float32))

        return np.asarray(jax.jit(jax.grad(total))(rows), np.float64)

    bias, positions = np.ones(12, np.float32), np.ones((128, 12), np.float32)
    heads = np.ones((4, 3), np.float32)
    for rows, axes, compute in (
        (bias, (0, 1), lambda rows: add_row(x, rows)),
        (positions, 0, lambda rows: add_row(x, rows)),
        (positions, 0, lambda rows: repeat_rows(rows, shape, jnp.bfloat16)),
        (heads, (0, 1), lambda rows: add_row(x.reshape(64, 128, 4, 3), rows).reshape(shape)),
    ):
        expected = exact.sum(axes).reshape(rows.shape)
        np.testing.assert_allclose(gradient(rows, compute), expected, rtol=1e-4, atol=1e-3)
    # Values are those of a sum in the dtype of the activations.
    np.testing.assert_array_equal(
        np.asarray(add_row(x, jnp.asarray(bias) / 3), np.float32),
        np.asarray(x + (jnp.asarray(bias) / 3).astype(jnp.bfloat16)[None, None], np.float32),
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parcel", "mqt"])
def test_gradients_in_half_precision_are_near_those_in_full(kind: str):
    full = tiny_config(kind)
    params = init_params(full, 1)
    images = np.random.default_rng(2).integers(0, 255, (64, 1, 32, 32, 3), np.uint8)

    def gradients(cfg):
        def total(params):
            soft, _ = vlm.soft_tokens(vlm.structure(cfg), params, images, vlm.Slots(62, 62))
            return jnp.sum(soft.astype(jnp.float32))

        return dict(flatten_params(jax.jit(jax.grad(total))(params)))

    half, exact = (gradients(dataclasses.replace(full, dtype=d)) for d in ("bfloat16", "float32"))
    for path in ("projector/bias", "connector/queries", "vision/positions", "vision/patches/bias"):
        error = np.linalg.norm(np.asarray(half[path]) - np.asarray(exact[path]))
        assert error <= 0.03 * np.linalg.norm(np.asarray(exact[path])), path
