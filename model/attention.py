"""The core of attention, in the memory layout that is fastest on the current hardware.

A TPU or GPU multiplies in any layout, and loses time only where an array must be copied to another
layout: it runs plain einsums on arrays as the projections write them. A CPU is fast only when it
reads memory row by row. There, attention weights are stored as (keys, queries), so that both
products of the forward pass and all four of the backward pass read them in order: with 256 features
and 4 heads of 16, on two cores, the forward pass is 4 x and forward with backward 1.4 x as fast as
the einsums and their derivative (jax 0.10.2, November 2026).
"""

import functools
import typing
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from model.lowering import keep_for_backward, platform
from model.sharding import pvary

MASKED = -2.3819763e38
"""Logit of a key that may not be seen. Source: gemma; finite, so that no row becomes NaN."""

MAX_BLOCK = 1152
"""Most queries whose logits exist at a time, except on a CPU. All queries of eight clips of 16
frames, 256 tokens each, would have 4.3 GiB of logits. An image of 448 px with its text, 1,152
tokens, is one block: three took 1.3 times as long on a TPU v4, by the compiler's cycles."""


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
    """Computes `attention` by plain einsums, a block of queries at a time; no weight is kept."""
    # Heads come before positions: the projections write their arrays like that, so nothing is
    # copied, and the heads of a group become more rows of one matrix product.
    q = jnp.transpose(queries, (0, 2, 3, 1, 4))
    k, v = jnp.swapaxes(keys, 1, 2), jnp.swapaxes(values, 1, 2)
    mask = None if mask is None else mask[:, None, None]
    read: Array = _heads_first(q, k, v, mask, cap)
    return jnp.transpose(read, (0, 3, 1, 2, 4))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _heads_first(
    queries: Float[Array, "B K G N h"],
    keys: Float[Array, "B K S h"],
    values: Float[Array, "B K S h"],
    mask: Bool[Array, "#B 1 1 #N #S"] | None,
    cap: float,
) -> Float[Array, "B K G N h"]:
    """Returns each query's output. Source: FlashAttention (2205.14135), algorithm 4."""
    return _heads_forward(queries, keys, values, mask, cap)[0]


def _heads_forward(
    queries: Array, keys: Array, values: Array, mask: Array | None, cap: float
) -> tuple:
    def block(queries: Array, mask: Array | None) -> tuple:
        logits, _ = _capped_attention_logits(queries, keys, mask, cap)
        # A row's largest weight becomes exp(0) = 1: whatever the logits, nothing overflows.
        largest = jnp.max(logits, axis=-1, keepdims=True)
        weights = jnp.exp(logits - largest)
        # Dividing the few outputs is cheaper than dividing the many weights.
        inverse = 1.0 / jnp.sum(weights, axis=-1, keepdims=True)
        read = (
            _attention_einsum("bkgns,bksh->bkgnh", weights.astype(values.dtype), values) * inverse
        )
        return (read.astype(values.dtype), largest, inverse), ()

    # Kept for the backward pass: the outputs and two numbers per row. The weights, a row of S
    # numbers for each query, are computed again from queries and keys.
    results, _ = _in_blocks(block, (queries, mask))
    read, largest, inverse = (keep_for_backward(rows) for rows in results)
    return read, (queries, keys, values, mask, read, largest, inverse)


def _heads_backward(cap: float, saved: tuple, gradient: Float[Array, "B K G N h"]) -> tuple:
    queries, keys, values, mask, *kept = saved
    # Added up over blocks, gradients of keys and values stay in float32.
    dtype = jnp.float32 if queries.shape[3] > MAX_BLOCK else keys.dtype

    # With w the weights, g the gradient of the output o = w v, and s the slope of the cap:
    #
    #     dw = g vᵀ    dl = s w (dw - mean)    dq = dl k    dk = dlᵀ q    dv = wᵀ g
    def block(queries: Array, mask: Array | None, *rows: Array) -> tuple:
        read, largest, inverse, gradient = rows
        logits, slope = _capped_attention_logits(queries, keys, mask, cap)
        weights = jnp.exp(logits - largest)
        # The softmax's derivative subtracts the weighted mean of `d_weights`. That mean equals the
        # product of a query's output and the output's gradient, which is cheaper to compute. The
        # weights are not normalized: the factor `inverse` goes into the smaller arrays instead.
        full = gradient.astype(jnp.float32)
        mean = jnp.sum(full * read, axis=-1, keepdims=True) * inverse
        scaled = (full * inverse).astype(values.dtype)
        d_logits = weights * (_attention_einsum("bkgnh,bksh->bkgns", scaled, values) - mean)
        d_logits = (d_logits if slope is None else d_logits * slope).astype(keys.dtype)
        d_queries = _attention_einsum("bkgns,bksh->bkgnh", d_logits, keys, queries.dtype)
        d_keys = _attention_einsum("bkgns,bkgnh->bksh", d_logits, queries, dtype)
        d_values = _attention_einsum(
            "bkgns,bkgnh->bksh", weights.astype(values.dtype), scaled, dtype
        )
        return d_queries, (d_keys, d_values)

    d_queries, (d_keys, d_values) = _in_blocks(block, (queries, mask, *kept, gradient))
    return d_queries, d_keys.astype(keys.dtype), d_values.astype(values.dtype), None


_heads_first.defvjp(_heads_forward, _heads_backward)


def _capped_attention_logits(
    queries: Array, keys: Array, mask: Array | None, cap: float
) -> tuple[Float[Array, "B K G N S"], Float[Array, "B K G N S"] | None]:
    """Returns the capped and masked logits, and the cap's derivative, or None without a cap."""
    logits, slope = _attention_einsum("bkgnh,bksh->bkgns", queries, keys), None
    if cap:
        tanh = jnp.tanh(logits / cap)
        logits, slope = cap * tanh, 1.0 - jnp.square(tanh)
    return logits if mask is None else jnp.where(mask, logits, MASKED), slope


def _attention_einsum(subscripts: str, a: Array, b: Array, dtype: DTypeLike = jnp.float32) -> Array:
    return jnp.einsum(subscripts, a, b, preferred_element_type=dtype)


def _in_blocks(function: Callable[..., tuple], rows: tuple[typing.Any, ...]) -> tuple:
    """Returns what a function returns for all queries, computed for a block of them at a time.

    Args:
      function: (arrays with queries on axis 3) -> (such arrays, sums over these queries).
      rows: the function's arguments; None stays None.
    """
    axis = 3
    length = rows[0].shape[axis]
    count = -(-length // MAX_BLOCK)
    if count == 1:
        return function(*rows)
    # Blocks are of one size, a multiple of 16; the last is filled up with queries that see nothing,
    # and whose gradient is 0.
    size = -(-length // (16 * count)) * 16

    def padded(x: Array) -> Array:
        x = jnp.broadcast_to(x, (*x.shape[:axis], length, *x.shape[axis + 1 :]))
        return jnp.pad(x, [(0, size * count - length if i == axis else 0) for i in range(x.ndim)])

    def block(i: Array | int) -> tuple:
        part = functools.partial(
            jax.lax.dynamic_slice_in_dim, start_index=i * size, slice_size=size, axis=axis
        )
        return function(*jax.tree.map(part, whole))

    def joined(x: Array) -> Array:
        x = jnp.moveaxis(x, 0, axis)
        x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
        return jax.lax.slice_in_dim(x, 0, length, axis=axis)

    def body(sums: tuple, i: Array) -> tuple[tuple, tuple]:
        results, terms = block(i)
        return jax.tree.map(jnp.add, sums, terms), results

    whole = jax.tree.map(padded, rows)
    terms = jax.eval_shape(lambda: block(0)[1])
    zeros = jax.tree.map(lambda term: pvary(jnp.zeros(term.shape, term.dtype)), terms)
    sums, results = jax.lax.scan(body, zeros, jnp.arange(count))
    return jax.tree.map(joined, results), sums


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
    read: Array = _attention_by_rows(q, k, v, mask, cap)
    read = read.reshape(batch, kv_heads, channels, groups, length)
    return keep_for_backward(jnp.transpose(read, (0, 4, 1, 3, 2)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attention_by_rows(
    queries: Float[Array, "B K h N"],
    keys: Float[Array, "B K S h"],
    values: Float[Array, "B K h S"],
    mask: Bool[Array, "#B 1 #S #N"] | None,
    cap: float,
) -> Float[Array, "B K h N"]:
    return _attention_rows_forward(queries, keys, values, mask, cap)[0]


def _attention_rows_forward(
    queries: Array, keys: Array, values: Array, mask: Array | None, cap: float
) -> tuple:
    # (B, K, S, N): a row for each key, a column for each query. The softmax runs down a column.
    logits = _batched_matrix_product(keys, queries)
    tanh = jnp.tanh(logits / cap) if cap else None
    if tanh is not None:
        logits = cap * tanh
    if mask is not None:
        logits = jnp.where(mask, logits, MASKED)
    # Dividing the few outputs is cheaper than dividing the many weights.
    weights = jnp.exp(logits - jnp.max(logits, axis=2, keepdims=True))
    inverse = 1.0 / jnp.sum(weights, axis=2, keepdims=True)
    weights = weights.astype(values.dtype)
    read = _batched_matrix_product(values, weights) * inverse
    return read.astype(values.dtype), (queries, keys, values, mask, weights, inverse, tanh, read)


def _attention_rows_backward(cap: float, saved: tuple, gradient: Float[Array, "B K h N"]) -> tuple:
    queries, keys, values, _, weights, inverse, tanh, read = saved
    # As in `_heads_backward`, `share` is the mean that the softmax's derivative subtracts. The
    # saved weights are not normalized: the factor `inverse` goes into the smaller arrays instead.
    full = gradient.astype(jnp.float32)
    share = jnp.sum(full * read, axis=2, keepdims=True) * inverse
    scaled = (full * inverse).astype(values.dtype)
    d_logits = weights.astype(jnp.float32) * (
        _batched_matrix_product(_transpose_matrices(values), scaled) - share
    )
    if cap:
        d_logits = d_logits * (1.0 - jnp.square(tanh))
    d_logits = d_logits.astype(keys.dtype)
    d_queries = _batched_matrix_product(_transpose_matrices(keys), d_logits).astype(queries.dtype)
    d_keys = _batched_matrix_product(d_logits, _transpose_matrices(queries)).astype(keys.dtype)
    d_values = _transpose_matrices(
        _batched_matrix_product(weights, _transpose_matrices(scaled))
    ).astype(values.dtype)
    return d_queries, d_keys, d_values, None


_attention_by_rows.defvjp(_attention_rows_forward, _attention_rows_backward)


def _batched_matrix_product(
    a: Float[Array, "B K M J"], b: Float[Array, "B K J N"]
) -> Float[Array, "B K M N"]:
    dims = (((3,), (2,)), ((0, 1), (0, 1)))
    return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def _transpose_matrices(x: Float[Array, "B K M N"]) -> Float[Array, "B K N M"]:
    return jnp.swapaxes(x, 2, 3)
