"""The core of attention, in the memory layout that is fastest on the current hardware.

A TPU or GPU multiplies in any layout, and loses time only where an array must be copied to another
layout: it runs plain einsums on arrays as the projections write them. A CPU is fast only when it
reads memory row by row. There, attention weights are stored as (keys, queries), so that both
products of the forward pass and all four of the backward pass read them in order: with 256 features
and 4 heads of 16, on two cores, the forward pass is 4 x and forward with backward 1.4 x as fast as
the einsums and their derivative (jax 0.10.2, November 2026).
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from model.lowering import keep_for_backward, platform

MASKED = -2.3819763e38
"""Logit of a key that may not be seen. Source: gemma; finite, so that no row becomes NaN."""


def attention(
    queries: Float[Array, "B N K G h"],
    keys: Float[Array, "B S K h"],
    values: Float[Array, "B S K h"],
    mask: Bool[Array, "#B #N #S"] | None,
    cap: float,
) -> Float[Array, "B N K G h"]:
    """Returns each query's mean of the values, weighted by a float32 softmax over the keys it sees.

    Args:
      queries: scaled queries; K groups of G heads, each group sharing one key head.
      keys: keys of all positions.
      values: values of all positions.
      mask: True where a query sees a key; None lets every query see every key.
      cap: soft-cap: logits become cap * tanh(logit / cap) before masking; 0 is off.
    """
    return (by_rows if platform() == "cpu" else by_einsum)(queries, keys, values, mask, cap)


def by_einsum(
    queries: Float[Array, "B N K G h"],
    keys: Float[Array, "B S K h"],
    values: Float[Array, "B S K h"],
    mask: Bool[Array, "#B #N #S"] | None,
    cap: float,
) -> Float[Array, "B N K G h"]:
    """Computes `attention` by plain einsums; the backward pass keeps outputs, not weights."""
    # Heads come before positions: the projections write their arrays like that, so nothing is
    # copied, and the heads of a group become more rows of one matrix product.
    q = jnp.transpose(queries, (0, 2, 3, 1, 4))
    k, v = jnp.swapaxes(keys, 1, 2), jnp.swapaxes(values, 1, 2)
    return jnp.transpose(_heads_first(q, k, v, mask, cap), (0, 3, 1, 2, 4))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _heads_first(
    queries: Float[Array, "B K G N h"],
    keys: Float[Array, "B K S h"],
    values: Float[Array, "B K S h"],
    mask: Bool[Array, "#B #N #S"] | None,
    cap: float,
) -> Float[Array, "B K G N h"]:
    """Returns each query's output. Source: FlashAttention (2205.14135), algorithm 4."""
    return _heads_forward(queries, keys, values, mask, cap)[0]


def _heads_forward(
    queries: Array, keys: Array, values: Array, mask: Array | None, cap: float
) -> tuple:
    logits, _ = _capped(queries, keys, mask, cap)
    # A row's largest weight becomes exp(0) = 1: whatever the logits, nothing overflows.
    max_logits = jnp.max(logits, axis=-1, keepdims=True)
    weights = jnp.exp(logits - max_logits)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    full = {"preferred_element_type": jnp.float32}
    # Dividing the few outputs is cheaper than dividing the many weights.
    read = jnp.einsum("bkgns,bksh->bkgnh", weights.astype(values.dtype), values, **full)
    read = keep_for_backward((read / total).astype(values.dtype))
    # Kept for the backward pass: the outputs and one number per row. The weights, a row of S
    # numbers for each query, are computed again from queries and keys.
    return read, (queries, keys, values, mask, read, keep_for_backward(max_logits + jnp.log(total)))


def _heads_backward(cap: float, saved: tuple, gradient: Float[Array, "B K G N h"]) -> tuple:
    queries, keys, values, mask, read, log_total = saved
    # With w the weights, g the gradient of the output o = w v, and s the slope of the cap:
    #
    #     dw = g vᵀ    dl = s w (dw - mean)    dq = dl k    dk = dlᵀ q    dv = wᵀ g
    logits, slope = _capped(queries, keys, mask, cap)
    weights = jnp.exp(logits - log_total)
    full = {"preferred_element_type": jnp.float32}
    d_weights = jnp.einsum("bkgnh,bksh->bkgns", gradient, values, **full)
    # The softmax's derivative subtracts the weighted mean of `d_weights`. That mean equals the
    # product of a query's output and the output's gradient, which is cheaper to compute.
    mean = jnp.sum(gradient.astype(jnp.float32) * read.astype(jnp.float32), axis=-1, keepdims=True)
    d_logits = weights * (d_weights - mean)
    d_logits = (d_logits if slope is None else d_logits * slope).astype(keys.dtype)
    d_queries = jnp.einsum("bkgns,bksh->bkgnh", d_logits, keys)
    d_keys = jnp.einsum("bkgns,bkgnh->bksh", d_logits, queries)
    d_values = jnp.einsum("bkgns,bkgnh->bksh", weights.astype(values.dtype), gradient)
    return d_queries, d_keys, d_values, None


def _capped(
    queries: Array, keys: Array, mask: Array | None, cap: float
) -> tuple[Float[Array, "B K G N S"], Float[Array, "B K G N S"] | None]:
    """Returns the capped and masked logits, and the cap's derivative, or None without a cap."""
    logits = jnp.einsum("bkgnh,bksh->bkgns", queries, keys, preferred_element_type=jnp.float32)
    slope = None
    if cap:
        tanh = jnp.tanh(logits / cap)
        logits, slope = cap * tanh, 1.0 - jnp.square(tanh)
    if mask is not None:
        logits = jnp.where(mask[:, None, None], logits, MASKED)
    return logits, slope


_heads_first.defvjp(_heads_forward, _heads_backward)


def by_rows(
    queries: Float[Array, "B N K G h"],
    keys: Float[Array, "B S K h"],
    values: Float[Array, "B S K h"],
    mask: Bool[Array, "#B #N #S"] | None,
    cap: float,
) -> Float[Array, "B N K G h"]:
    """Computes `attention` with weights stored as (keys, queries) and a hand-written derivative."""
    batch, length, kv_heads, groups, channels = queries.shape
    # The heads of a group share their keys, so they are laid side by side as more queries.
    # Columns are head by head, [ head 0: q0 … qN-1 | head 1: q0 … qN-1 | … ], so a mask for one
    # head is repeated side by side, too.
    q = jnp.transpose(queries, (0, 2, 4, 3, 1)).reshape(batch, kv_heads, channels, -1)
    k, v = jnp.transpose(keys, (0, 2, 1, 3)), jnp.transpose(values, (0, 2, 3, 1))
    if mask is not None:
        mask = jnp.transpose(mask, (0, 2, 1))[:, None]
        mask = jnp.tile(mask, groups) if mask.shape[-1] > 1 else mask
    read: Array = _rows(q, k, v, mask, cap)
    read = read.reshape(batch, kv_heads, channels, groups, length)
    return keep_for_backward(jnp.transpose(read, (0, 4, 1, 3, 2)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _rows(
    queries: Float[Array, "B K h N"],
    keys: Float[Array, "B K S h"],
    values: Float[Array, "B K h S"],
    mask: Bool[Array, "#B 1 #S #N"] | None,
    cap: float,
) -> Float[Array, "B K h N"]:
    return _forward(queries, keys, values, mask, cap)[0]


def _forward(queries: Array, keys: Array, values: Array, mask: Array | None, cap: float) -> tuple:
    # (B, K, S, N): a row for each key, a column for each query. The softmax runs down a column.
    logits = _product(keys, queries)
    tanh = jnp.tanh(logits / cap) if cap else None
    if tanh is not None:
        logits = cap * tanh
    if mask is not None:
        logits = jnp.where(mask, logits, MASKED)
    # Dividing the few outputs is cheaper than dividing the many weights.
    weights = jnp.exp(logits - jnp.max(logits, axis=2, keepdims=True))
    inverse = 1.0 / jnp.sum(weights, axis=2, keepdims=True)
    weights = weights.astype(values.dtype)
    read = _product(values, weights) * inverse
    return read.astype(values.dtype), (queries, keys, values, mask, weights, inverse, tanh, read)


def _backward(cap: float, saved: tuple, gradient: Float[Array, "B K h N"]) -> tuple:
    queries, keys, values, _, weights, inverse, tanh, read = saved
    # As in `_heads_backward`, `share` is the mean that the softmax's derivative subtracts. The
    # saved weights are not normalized: the factor `inverse` goes into the smaller arrays instead.
    full = gradient.astype(jnp.float32)
    share = jnp.sum(full * read, axis=2, keepdims=True) * inverse
    scaled = (full * inverse).astype(values.dtype)
    d_logits = weights.astype(jnp.float32) * (_product(_swap(values), scaled) - share)
    if cap:
        d_logits = d_logits * (1.0 - jnp.square(tanh))
    d_logits = d_logits.astype(keys.dtype)
    d_queries = _product(_swap(keys), d_logits).astype(queries.dtype)
    d_keys = _product(d_logits, _swap(queries)).astype(keys.dtype)
    d_values = _swap(_product(weights, _swap(scaled))).astype(values.dtype)
    return d_queries, d_keys, d_values, None


_rows.defvjp(_forward, _backward)


def _product(a: Float[Array, "B K M J"], b: Float[Array, "B K J N"]) -> Float[Array, "B K M N"]:
    dims = (((3,), (2,)), ((0, 1), (0, 1)))
    return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def _swap(x: Float[Array, "B K M N"]) -> Float[Array, "B K N M"]:
    return jnp.swapaxes(x, 2, 3)
