"""Tests of dropout: what it drops, and that buckets, scan and remat do not change that."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose

from model import vlm
from model.text.attention import rotation
from model.text.decoder import DecoderBlock
from model.text.dropout import Dropout
from tests.model.tiny_models import TEXT, VISION, batch, init_params, tiny_config

KEY = jax.random.key(7)
POSITIONS = jnp.broadcast_to(jnp.arange(31, dtype=jnp.int32), (5, 31))


@functools.partial(jax.jit, static_argnames="branch")
def dropped(x, *, key=KEY, layer: int = 1, branch: int = 0):
    return Dropout(0.3, key, jnp.arange(5)).in_layers(POSITIONS)(jnp.asarray(layer))(x, branch)


def test_the_kept_fraction_and_the_mean_are_right():
    ones = jnp.ones((5, 31, 113))
    out = np.asarray(dropped(ones))
    deviation = np.sqrt(0.3 * 0.7 / ones.size)
    assert (out > 0).mean() == pytest.approx(0.7, abs=4 * deviation)
    assert set(np.unique(out)) == {0.0, np.float32(1) / np.float32(0.7)}
    means = np.mean([dropped(ones, key=jax.random.key(i)) for i in range(40)], axis=0)
    assert means.mean() == pytest.approx(1, abs=4 * deviation / 0.7)
    assert means.std() == pytest.approx(np.sqrt(0.3 / 0.7 / 40), rel=0.05)


def test_examples_positions_channels_layers_branches_and_keys_are_independent():
    ones = jnp.ones((5, 31, 113))
    out = np.asarray(dropped(ones)) > 0
    pairs = [(out[1:], out[:-1]), (out[:, 1:], out[:, :-1]), (out[..., 1:], out[..., :-1])]
    others = dropped(ones, branch=1), dropped(ones, layer=2), dropped(ones, key=jax.random.key(8))
    pairs += [(out, np.asarray(other) > 0) for other in others]
    for one, other in pairs:
        assert (one == other).mean() == pytest.approx(0.7**2 + 0.3**2, abs=0.02)


def test_what_is_dropped_gets_no_gradient():
    x = jnp.ones((5, 31, 11))
    gradient = jax.grad(lambda x: jnp.sum(dropped(x)))(x)
    np.testing.assert_array_equal(gradient, dropped(x))
    assert np.any(np.asarray(gradient) == 0)


def test_the_last_rows_alone_are_dropped_as_among_all():
    x = jnp.ones((5, 31, 11))
    np.testing.assert_array_equal(dropped(x[:, -4:]), dropped(x)[:, -4:])


def test_a_block_drops_after_the_norm_of_attention_and_before_that_of_the_mlp():
    block = DecoderBlock(TEXT, rngs=nnx.Rngs(0))
    turn = rotation(jnp.tile(jnp.arange(5), (2, 1)), TEXT.head_dim, TEXT.rope_base)
    mask = jnp.ones((2, 5, 5), bool)

    @jax.jit
    def given_and_wanted(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        seen: list[jax.Array] = []

        def double(x: jax.Array, branch: int) -> jax.Array:
            seen.append(x)
            return x * 2 if branch == 0 else x * 3

        given, _ = block(x, turn, mask, cap=0.0, drop=double)
        middle = x + 2 * seen[0]
        # The norm after it undoes the scaling of the MLP's branch.
        mlp = block._mlp(block.pre_mlp_norm(middle), None, None, None)
        return seen[0], given, middle + block.post_mlp_norm(mlp)

    attended, given, wanted = given_and_wanted(jax.random.normal(KEY, (2, 5, TEXT.width)))
    assert_allclose(jnp.mean(jnp.square(attended), axis=-1), 1, rtol=1e-3)
    assert_allclose(given, wanted, rtol=1e-4, atol=1e-5)


def run(cfg, bucket: int, budget: int, drop: Dropout | None, make=lambda loss: loss):
    data, slots = batch(num_images=1), vlm.Slots(bucket, budget)

    def loss(params: vlm.Params) -> jax.Array:
        weights = jnp.asarray(data.mask_loss[:, 1:], jnp.float32)
        return vlm.loss(vlm.structure(cfg), params, data, slots, weights, dropout=drop)

    return jax.jit(make(loss))(init_params(cfg, 3))


SHALLOW = {"vision": dataclasses.replace(VISION, depth=1)}
ELASTIC = [("mqt", (256,)), ("parcel", (62, 256))]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "buckets"), ELASTIC)
def test_masked_slots_change_nothing(kind: str, buckets: tuple[int, ...]):
    cfg = tiny_config(kind, **SHALLOW)
    cfg = dataclasses.replace(cfg, connector=dataclasses.replace(cfg.connector, buckets=buckets))
    exact = run(cfg, 70, 70, Dropout(0.3, KEY, jnp.arange(2)))
    assert_allclose(run(cfg, 256, 70, Dropout(0.3, KEY, jnp.arange(2))), exact, rtol=1e-5)
    assert abs(exact - run(cfg, 256, 70, Dropout(0.3, jax.random.key(8), jnp.arange(2)))) > 1e-3


@pytest.mark.slow
def test_scanned_and_recomputed_drops_what_unrolled_does():
    unrolled = tiny_config("m3", **SHALLOW)
    scanned = dataclasses.replace(unrolled, scan_layers=True, remat="full")
    drop = Dropout(0.3, KEY, jnp.arange(2))
    loss, gradient = run(unrolled, 16, 16, drop, jax.value_and_grad)
    other, other_gradient = run(
        scanned, 16, 16, Dropout(0.3, KEY, jnp.arange(2)), jax.value_and_grad
    )
    assert_allclose(loss, other, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(other_gradient), strict=True):
        assert_allclose(a, b, rtol=1e-4, atol=1e-5)
