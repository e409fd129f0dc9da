"""Cross-entropy over a large vocabulary, a few positions at a time.

The logits of all positions of a batch would take more memory than the model. Positions that count
are moved to the front of their row, and rows are cut into chunks; chunks without a counting
position in any row are skipped. Rows stay whole, so a batch sharded over devices stays where it is.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from model.lowering import materialize
from model.sharding import pvary
from model.text.attention import softcap
from model.text.decoder import Decoder


def chunked_losses(
    decoder: Decoder,
    hidden: Float[Array, "B T D"],
    targets: Int32[Array, "B T"],
    counting: Bool[Array, "B T"],
    label_smoothing: float,
) -> Float[Array, "B T"]:
    """Returns the loss of each wanted target, 0 elsewhere; for inspection, without derivative."""
    order, chunks = _in_chunks(decoder.model.loss_chunk, hidden, targets, counting)
    hidden, targets, counting = chunks
    table = decoder.output_table.astype(hidden.dtype)
    losses = _chunk_token_losses(
        table, hidden, targets, counting, (decoder.model.final_softcap, label_smoothing)
    )
    losses = jnp.moveaxis(losses, 0, 1).reshape(len(order), -1)[:, : order.shape[1]]
    # Sorting a permutation gives its inverse: every loss goes back to where its target stood.
    return jnp.take_along_axis(losses, jnp.argsort(order, axis=1), axis=1)


def weighted_loss(
    decoder: Decoder,
    hidden: Float[Array, "B T D"],
    targets: Int32[Array, "B T"],
    weights: Float[Array, "B T"],
    label_smoothing: float,
    *,
    num_rows: int,
) -> Float[Array, ""]:
    """Returns the sum of weighted losses; targets of weight 0 are skipped.

    Args:
      decoder: the decoder.
      hidden: its output for the text before each target.
      targets: the targets; those of several rows may be packed into one.
      weights: weight of each target.
      label_smoothing: see `smoothed_losses`.
      num_rows: rows whose positions these are, before they were packed; as many logits exist at a
        time as `loss_chunk` positions of each of them have.
    """
    chunk = decoder.model.loss_chunk * (num_rows // len(targets))
    _, (hidden, targets, weights) = _in_chunks(chunk, hidden, targets, weights)
    table = decoder.output_table.astype(hidden.dtype)
    return _weighted_chunk_loss(
        table, hidden, targets, weights, (decoder.model.final_softcap, label_smoothing)
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _weighted_chunk_loss(
    table: Float[Array, "V D"],
    hidden: Float[Array, "N B C D"],
    targets: Int32[Array, "N B C"],
    weights: Float[Array, "N B C"],
    cap_and_smoothing: tuple[float, float],
) -> Float[Array, ""]:
    """Returns the weighted loss of N chunks."""
    return jnp.sum(
        weights * _chunk_token_losses(table, hidden, targets, weights, cap_and_smoothing)
    )


def _with_gradient(
    table: Array,
    hidden: Array,
    targets: Array,
    weights: Array,
    cap_and_smoothing: tuple[float, float],
) -> tuple[Array, tuple[Array, Array]]:
    """Returns the weighted loss, and its gradient with respect to table and hidden rows.

    The gradient of a sum is known up to one factor, so it is computed here, while a chunk's logits
    exist. The backward pass need not compute them again, and nothing of a chunk has to be kept. The
    table's gradient is summed in float32.
    """

    def body(i: Array, sums: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        loss, d_table, d_hidden = sums
        # (B, C, V): in the 3B model 16 MB for each row of the batch, at chunks of 16. Everything
        # that needs it is computed before the next chunk replaces it.
        scores = _vocabulary_scores(hidden[i], table)
        losses = _of_scores(scores, targets[i], cap_and_smoothing)
        slopes = _vocabulary_loss_slopes(scores, targets[i], cap_and_smoothing)
        d_scores = materialize((weights[i][..., None] * slopes).astype(hidden.dtype))
        full = {"preferred_element_type": jnp.float32}
        d_table += jnp.einsum("bcv,bcd->vd", d_scores, hidden[i], **full)
        d_chunk = jnp.einsum("bcv,vd->bcd", d_scores, table, **full).astype(hidden.dtype)
        return loss + jnp.sum(weights[i] * losses), d_table, d_hidden.at[i].set(d_chunk)

    # One sum for the table, which all chunks add to; a slot for each hidden row. Chunks beyond the
    # last that counts are not visited, and keep a gradient of 0.
    zeros = jnp.zeros(()), jnp.zeros(table.shape), jnp.zeros(hidden.shape, hidden.dtype)
    count = _num_counting(weights)
    loss, *gradient = jax.lax.fori_loop(0, count, body, tuple(pvary(zero) for zero in zeros))
    return loss, (gradient[0], gradient[1])


def _chunk_loss_forward(
    table: Array,
    hidden: Array,
    targets: Array,
    weights: Array,
    cap_and_smoothing: tuple[float, float],
) -> tuple[Array, tuple[Array, Array]]:
    loss, (d_table, d_hidden) = _with_gradient(table, hidden, targets, weights, cap_and_smoothing)
    return loss, (d_table.astype(table.dtype), d_hidden)


def _chunk_loss_backward(
    cap_and_smoothing: tuple[float, float], gradients: tuple[Array, Array], factor: Float[Array, ""]
) -> tuple:
    del cap_and_smoothing
    d_table, d_hidden = (factor.astype(gradient.dtype) * gradient for gradient in gradients)
    return d_table, d_hidden, None, None


_weighted_chunk_loss.defvjp(_chunk_loss_forward, _chunk_loss_backward)


def _in_chunks(
    chunk: int, hidden: Array, targets: Array, counting: Array
) -> tuple[Int32[Array, "B T"], tuple[Array, Array, Array]]:
    """Returns the order of each row that puts counting positions first, and all rows in chunks."""
    # A row of 8 positions, of which three s count, in chunks of 2:
    #
    #     as read    p p s s s . . .
    #     sorted     s s s p p . . .
    #     chunks     [s s] [s p] [p .] [. .]      the last two are never computed
    #
    # Their logits, 257,152 numbers for each position, are what takes the memory.
    chunk = min(chunk, targets.shape[1])
    # False sorts before True: counting positions come first, in their order.
    order = jnp.argsort(~counting.astype(bool), axis=1, stable=True)
    hidden = jnp.take_along_axis(hidden, order[..., None], axis=1)
    targets, counting = (jnp.take_along_axis(a, order, axis=1) for a in (targets, counting))
    return order, (
        _chunk_text_positions(hidden, chunk),
        _chunk_text_positions(targets, chunk),
        _chunk_text_positions(counting, chunk),
    )


def _chunk_token_losses(
    table: Array,
    hidden: Array,
    targets: Array,
    counting: Array,
    cap_and_smoothing: tuple[float, float],
) -> Float[Array, "N B C"]:
    """Returns the losses of N chunks, 0 where a position does not count."""

    def body(i: Array, losses: Array) -> Array:
        chunk_losses = _of_scores(
            _vocabulary_scores(hidden[i], table), targets[i], cap_and_smoothing
        )
        return losses.at[i].set(jnp.where(counting[i].astype(bool), chunk_losses, 0.0))

    zeros = pvary(jnp.zeros(targets.shape))
    return jax.lax.fori_loop(0, _num_counting(counting), body, zeros)


def _vocabulary_scores(
    hidden: Float[Array, "B C D"], table: Float[Array, "V D"]
) -> Float[Array, "B C V"]:
    return jnp.einsum("bcd,vd->bcv", hidden, table, preferred_element_type=jnp.float32)


def _of_scores(
    scores: Array, targets: Array, cap_and_smoothing: tuple[float, float]
) -> Float[Array, "B C"]:
    cap, smoothing = cap_and_smoothing
    return smoothed_losses(softcap(scores, cap), targets, smoothing)


def _vocabulary_loss_slopes(
    scores: Float[Array, "B C V"],
    targets: Int32[Array, "B C"],
    cap_and_smoothing: tuple[float, float],
) -> Float[Array, "B C V"]:
    """Returns the derivative of `_of_scores`: softmax minus the smoothed target distribution.

    JAX's own derivative would subtract the target in another array as large as all logits.
    """
    cap, smoothing = cap_and_smoothing
    logits = softcap(scores, cap)
    vocab = logits.shape[-1]
    is_target = jnp.arange(vocab).reshape(1, 1, -1) == targets[..., None]
    target_distribution = jnp.where(is_target, 1.0 - smoothing, smoothing / (vocab - 1))
    shares = jnp.exp(logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True))
    slopes = shares - target_distribution
    return slopes * (1.0 - jnp.square(logits / cap)) if cap else slopes


def _num_counting(counting: Array) -> Int32[Array, ""]:
    """Returns the number of chunks with a counting position; these are the first chunks."""
    return jnp.sum(jnp.any(counting.astype(bool), axis=(1, 2)), dtype=jnp.int32)


def smoothed_losses(
    logits: Float[Array, "B T V"], targets: Int32[Array, "B T"], smoothing: float
) -> Float[Array, "B T"]:
    """Returns cross-entropies with smoothed targets.

    The target has probability 1 - smoothing, every other token an equal share of the rest. So a
    perfect model has a loss above 0, the entropy of that distribution.
    Source: big_vision `trainers/proj/paligemma/train.py`.
    """
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    if not smoothing:
        return normalizer - picked
    # The sum of log p over all V tokens is sum(logits) - V * normalizer; without the target's own.
    vocab = logits.shape[-1]
    high, low = 1.0 - smoothing, smoothing / (vocab - 1)
    other_log_probs = jnp.sum(logits, axis=-1) - vocab * normalizer - (picked - normalizer)
    return -(high * (picked - normalizer) + low * other_log_probs)


def _chunk_text_positions(x: Array, chunk: int) -> Array:
    """Returns `x` (B, T, ...) as (T / chunk, B, chunk, ...), padded with zeros."""
    batch, length = x.shape[:2]
    count = -(-length // chunk)
    pads = [(0, 0), (0, count * chunk - length)] + [(0, 0)] * (x.ndim - 2)
    return jnp.moveaxis(jnp.pad(x, pads).reshape(batch, count, chunk, *x.shape[2:]), 1, 0)
