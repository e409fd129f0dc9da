"""Packed texts: every token has one place, goes there and back, and padding gets no gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.text.packing import pack_texts

LENGTHS = np.array([3, 0, 1, 4], np.int32)
"""Of four texts of at most five tokens: eight in all."""


@pytest.mark.parametrize("places", [8, 11])
@pytest.mark.parametrize("num_slots", [0, 2])
def test_tokens_are_packed_in_their_order_and_padded_again(num_slots: int, places: int):
    packing = pack_texts(jnp.asarray(LENGTHS), num_slots, 5, places)
    tokens = np.arange(1, 1 + 4 * (num_slots + 5)).reshape(4, -1)
    slots, texts = tokens[:, :num_slots], tokens[:, num_slots:]
    is_text = np.arange(5) < LENGTHS[:, None]
    wanted = [*slots.ravel(), *texts[is_text], *[0] * (places - 8)]
    packed = packing.tokens(jnp.asarray(tokens))
    np.testing.assert_array_equal(packed, [wanted])
    wanted_rows = [*np.repeat(range(4), num_slots), *np.repeat(range(4), LENGTHS)]
    np.testing.assert_array_equal(packing.rows[: len(wanted_rows)], wanted_rows)
    again = packing.padded_tokens(packed)
    np.testing.assert_array_equal(again, np.hstack([slots, np.where(is_text, texts, 0)]))
    # Texts alone are the last tokens of both.
    np.testing.assert_array_equal(packing.tokens(jnp.asarray(texts)), packed[:, -places:])
    np.testing.assert_array_equal(packing.padded_tokens(packed[:, -places:]), again[:, num_slots:])
    assert packing.count(num_slots + 5) == packed.shape[1]
    assert packing.count(5) == places


def test_gradients_go_the_way_back_and_padding_has_none():
    packing = pack_texts(jnp.asarray(LENGTHS), 2, 5, 9)
    rng = np.random.default_rng(0)
    padded, packed = rng.normal(size=(4, 7, 3)), rng.normal(size=(1, 17, 3))
    # The derivative of a linear map f at any point, against a gradient g: <f(x), g> = <x, f'(g)>.
    for move, x, shape in (
        (packing.tokens, padded, packed.shape),
        (packing.padded_tokens, packed, padded.shape),
    ):
        gradient = rng.normal(size=shape)
        out, pull = jax.vjp(move, jnp.asarray(x))
        (back,) = pull(jnp.asarray(gradient))
        assert np.sum(out * gradient) == pytest.approx(float(np.sum(x * back)), rel=1e-5)
    (back,) = jax.vjp(packing.tokens, jnp.asarray(padded))[1](jnp.ones((1, 17, 3)))
    text = np.asarray(back)[:, 2:, 0]
    np.testing.assert_array_equal(text, np.arange(5) < LENGTHS[:, None])
