"""Cross-entropy over a large vocabulary, a few positions at a time."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from model.text.gemma import Gemma


def chunked_losses(
    decoder: Gemma,
    hidden: Float[Array, "B T D"],
    targets: Int32[Array, "B T"],
    wanted: Bool[Array, "B T"],
    label_smoothing: float,
) -> Float[Array, "B T"]:
    """Returns the loss of each wanted target, 0 elsewhere.

    Wanted positions are moved to the front of their row, and rows are cut into chunks: a chunk in
    which no row wants anything is skipped, forward and backward. Rows stay whole, so a batch
    sharded over devices stays where it is.
    """
    batch, length = targets.shape
    chunk = min(decoder.model.loss_chunk, length)
    # False sorts before True: wanted positions come first, in their order.
    order = jnp.argsort(~wanted, axis=1, stable=True)
    hidden = jnp.take_along_axis(hidden, order[..., None], axis=1)
    targets, wanted = (jnp.take_along_axis(a, order, axis=1) for a in (targets, wanted))

    @jax.checkpoint
    def some(hidden: Array, targets: Array) -> Array:
        return smoothed_losses(decoder.logits(hidden), targets, label_smoothing)

    def body(_: None, part: tuple[Array, Array, Array]) -> tuple[None, Array]:
        h, t, w = part
        losses = jax.lax.cond(jnp.any(w), some, lambda h, t: jnp.zeros_like(t, jnp.float32), h, t)
        return None, jnp.where(w, losses, 0.0)

    parts = _chunks(hidden, chunk), _chunks(targets, chunk), _chunks(wanted, chunk)
    _, losses = jax.lax.scan(body, None, parts)
    losses = jnp.moveaxis(losses, 0, 1).reshape(batch, -1)[:, :length]
    # Sorting a permutation gives its inverse: every loss goes back to where its target stood.
    back = jnp.argsort(order, axis=1)
    return jnp.take_along_axis(losses, back, axis=1)


def smoothed_losses(
    logits: Float[Array, "B T V"], targets: Int32[Array, "B T"], smoothing: float
) -> Float[Array, "B T"]:
    """Returns cross-entropies, less the least value smoothing allows, so that 0 is perfect.

    The target has probability 1 - smoothing, every other token an equal share of the rest.
    Source: big_vision `utils.weighted_softmax_xent`.
    """
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    if not smoothing:
        return normalizer - picked
    vocab = logits.shape[-1]
    high, low = 1.0 - smoothing, smoothing / (vocab - 1)
    others = jnp.sum(logits, axis=-1) - vocab * normalizer - (picked - normalizer)
    least = -(high * np.log(high) + (vocab - 1) * low * np.log(low))
    return -(high * (picked - normalizer) + low * others) - least


def _chunks(x: Array, chunk: int) -> Array:
    """Returns `x` (B, T, ...) as (T / chunk, B, chunk, ...), padded with zeros."""
    batch, length = x.shape[:2]
    count = -(-length // chunk)
    pads = [(0, 0), (0, count * chunk - length)] + [(0, 0)] * (x.ndim - 2)
    return jnp.moveaxis(jnp.pad(x, pads).reshape(batch, count, chunk, *x.shape[2:]), 1, 0)
