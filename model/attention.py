"""The core of attention, in the memory layout that is fastest on the current hardware.

A TPU or GPU multiplies in any layout, and loses time only where an array must be copied to another
layout: there, arrays stay as the projections write them. A CPU is fast only when it reads memory
row by row. There, attention weights are stored as (keys, queries), so that both products of the
forward pass and all four of the backward pass read them in order: with 256 features and 4 heads of
16, on two cores, the forward pass is 4 x and forward with backward 1.4 x as fast as plain einsums
and their derivative (jax 0.10.2, November 2026).

A layout is an order of axes: one forward pass and one derivative serve both.
"""

import functools
import typing
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from model.lowering import keep_for_backward, platform
from model.sharding import pvary

MASKED = -2.3819763e38
"""Logit of a key that may not be seen. Source: gemma; finite, so that no row becomes NaN."""

MAX_BLOCK = 512
"""Most queries whose logits exist at a time, except on a CPU. All queries of eight clips of 16
frames, 256 tokens each, would have 4.3 GiB of logits."""


class Layout(typing.NamedTuple):
    """The order of axes of each array, as einsum subscripts.

    The letters: batch, key head, group (a query head of a key head), n queries, s keys, h channels.
    Keys are "bksh" in every layout.

    Attributes:
      queries: order of queries and outputs; `h` is where `logits` has `s`.
      values: order of the values.
      logits: order of logits and weights; `n` is where `queries` has it.
      keeps_weights: whether the backward pass finds the weights in memory. Otherwise it computes
        them again, a block of queries at a time.
    """

    queries: str
    values: str
    logits: str
    keeps_weights: bool


_ROWS = Layout("bkhn", "bkhs", "bksn", keeps_weights=True)
_HEADS = Layout("bkgnh", "bksh", "bkgns", keeps_weights=False)


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
    return (by_rows if platform() == "cpu" else by_heads)(queries, keys, values, mask, cap)


def by_heads(
    queries: Float[Array, "B N K G h"],
    keys: Float[Array, "B S K h"],
    values: Float[Array, "B S K h"],
    mask: Bool[Array, "#B #N #S"] | None,
    cap: float,
) -> Float[Array, "B N K G h"]:
    """Computes `attention` for a block of queries at a time; no weight is kept."""
    # Heads come before positions: the projections write their arrays like that, so nothing is
    # copied, and the heads of a group become more rows of one matrix product.
    q = jnp.transpose(queries, (0, 2, 3, 1, 4))
    k, v = jnp.swapaxes(keys, 1, 2), jnp.swapaxes(values, 1, 2)
    mask = None if mask is None else mask[:, None, None]
    read: Array = _attention(q, k, v, mask, cap, _HEADS)
    return jnp.transpose(read, (0, 3, 1, 2, 4))


def by_rows(
    queries: Float[Array, "B N K G h"],
    keys: Float[Array, "B S K h"],
    values: Float[Array, "B S K h"],
    mask: Bool[Array, "#B #N #S"] | None,
    cap: float,
) -> Float[Array, "B N K G h"]:
    """Computes `attention` with weights stored as (keys, queries), and kept."""
    batch, length, kv_heads, groups, channels = queries.shape
    # The heads of a group share their keys, so they are laid side by side as more queries.
    # Columns are head by head, [ head 0: q0 … qN-1 | head 1: q0 … qN-1 | … ], so a mask for one
    # head is repeated side by side, too.
    q = jnp.transpose(queries, (0, 2, 4, 3, 1)).reshape(batch, kv_heads, channels, -1)
    k, v = jnp.transpose(keys, (0, 2, 1, 3)), jnp.transpose(values, (0, 2, 3, 1))
    if mask is not None:
        mask = jnp.transpose(mask, (0, 2, 1))[:, None]
        mask = jnp.tile(mask, groups) if mask.shape[-1] > 1 else mask
    read: Array = _attention(q, k, v, mask, cap, _ROWS)
    read = read.reshape(batch, kv_heads, channels, groups, length)
    return jnp.transpose(read, (0, 4, 1, 3, 2))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attention(
    queries: Array, keys: Array, values: Array, mask: Array | None, cap: float, layout: Layout
) -> Array:
    """Returns each query's output, in the layout. Source: FlashAttention (2205.14135)."""
    return _forward(queries, keys, values, mask, cap, layout)[0]


def _forward(
    queries: Array, keys: Array, values: Array, mask: Array | None, cap: float, layout: Layout
) -> tuple:
    axis = layout.logits.index("s")

    def block(queries: Array, mask: Array | None) -> tuple:
        logits, slope = _capped(queries, keys, mask, cap, layout)
        # A query's largest weight becomes exp(0) = 1: whatever the logits, nothing overflows.
        largest = jnp.max(logits, axis=axis, keepdims=True)
        weights = jnp.exp(logits - largest)
        # Dividing the few outputs is cheaper than dividing the many weights.
        inverse = 1.0 / jnp.sum(weights, axis=axis, keepdims=True)
        weights = weights.astype(values.dtype)
        read = _einsum(values, layout.values, weights, layout.logits, layout.queries) * inverse
        kept = (weights, slope) if layout.keeps_weights else keep_for_backward(largest)
        read = keep_for_backward(read.astype(values.dtype))
        return (read, keep_for_backward(inverse), kept), ()

    (read, inverse, kept), _ = _in_blocks(block, (queries, mask), layout)
    return read, (queries, keys, values, mask, read, inverse, kept)


def _backward(cap: float, layout: Layout, saved: tuple, gradient: Array) -> tuple:
    queries, keys, values, mask, read, inverse, kept = saved
    axis = layout.logits.index("s")

    def block(queries: Array, mask: Array | None, *rows: typing.Any) -> tuple:
        read, inverse, kept, gradient = rows
        # With w the weights, g the gradient of the output o = w v, and c the slope of the cap:
        #
        #     dw = g vᵀ    dl = c w (dw - mean)    dq = dl k    dk = dlᵀ q    dv = wᵀ g
        if layout.keeps_weights:
            weights, slope = kept
        else:
            logits, slope = _capped(queries, keys, mask, cap, layout)
            weights = jnp.exp(logits - kept)
        # The softmax's derivative subtracts the weighted mean of `dw`. That mean equals the product
        # of a query's output and the output's gradient, which is cheaper to compute. The weights
        # are not normalized: the factor `inverse` goes into the smaller arrays instead.
        full = gradient.astype(jnp.float32)
        mean = jnp.sum(full * read, axis=axis, keepdims=True) * inverse
        scaled = (full * inverse).astype(values.dtype)
        d_weights = _einsum(values, layout.values, scaled, layout.queries, layout.logits)
        d_logits = weights.astype(jnp.float32) * (d_weights - mean)
        d_logits = (d_logits if slope is None else d_logits * slope).astype(keys.dtype)
        weights = weights.astype(values.dtype)
        d_queries = _einsum(keys, "bksh", d_logits, layout.logits, layout.queries)
        d_keys = _einsum(d_logits, layout.logits, queries, layout.queries, "bksh")
        d_values = _einsum(weights, layout.logits, scaled, layout.queries, "bksh")
        return d_queries.astype(queries.dtype), (d_keys, d_values)

    rows = queries, mask, read, inverse, kept, gradient
    d_queries, (d_keys, d_values) = _in_blocks(block, rows, layout)
    d_values = jnp.einsum(f"bksh->{layout.values}", d_values).astype(values.dtype)
    return d_queries, d_keys.astype(keys.dtype), d_values, None


_attention.defvjp(_forward, _backward)


def _capped(
    queries: Array, keys: Array, mask: Array | None, cap: float, layout: Layout
) -> tuple[Array, Array | None]:
    """Returns the capped and masked logits, and the cap's derivative, or None without a cap."""
    logits, slope = _einsum(keys, "bksh", queries, layout.queries, layout.logits), None
    if cap:
        tanh = jnp.tanh(logits / cap)
        logits, slope = cap * tanh, 1.0 - jnp.square(tanh)
    return logits if mask is None else jnp.where(mask, logits, MASKED), slope


def _einsum(a: Array, a_axes: str, b: Array, b_axes: str, order: str) -> Array:
    return jnp.einsum(f"{a_axes},{b_axes}->{order}", a, b, preferred_element_type=jnp.float32)


def _in_blocks(function: Callable[..., tuple], rows: tuple, layout: Layout) -> tuple:
    """Returns what a function returns for all queries, computed for a block of them at a time.

    Args:
      function: (arrays with an axis of queries) -> (such arrays, sums over these queries).
      rows: the function's arguments, in the layout; None stays None.
      layout: order of axes.
    """
    axis = layout.queries.index("n")
    length = rows[0].shape[axis]
    count = -(-length // MAX_BLOCK)
    if layout.keeps_weights or count == 1:
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
