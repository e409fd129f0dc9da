"""Layers with biases and LayerNorm, as image towers have them; connectors use them too."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from model.attention import attention
from model.lowering import materialize
from model.vision.family import Activation

_xavier = nnx.initializers.xavier_uniform()


def broadcast_row(vector: Float[Array, " C"], like: Array) -> Array:
    """Returns a vector shaped to broadcast over the last axis of `like`, in its dtype."""
    return jnp.reshape(vector, (1,) * (like.ndim - 1) + (-1,)).astype(like.dtype)


def add_row(x: Float[Array, "*B C"], rows: Float[Array, "*R C"]) -> Float[Array, "*B C"]:
    """Returns `x` plus rows of parameters, repeated over its leading axes, in the dtype of `x`."""
    return x + repeat_rows(rows, x.shape, x.dtype)


def repeat_rows(
    rows: Float[Array, "*R C"], shape: tuple[int, ...], dtype: DTypeLike
) -> Float[Array, "*B C"]:
    """Returns rows of parameters, repeated over the leading axes of a shape.

    Their gradient is a sum over all examples and positions, which is made in float32: in bfloat16,
    with 8 significant bits, it would be off by up to 13 %.
    """
    # In float32, the derivative that JAX knows is this one.
    if jnp.dtype(dtype) == jnp.float32:
        rows = rows.astype(dtype).reshape((1,) * (len(shape) - rows.ndim) + rows.shape)
        return jnp.broadcast_to(rows, shape)
    return _broadcast_vision_rows(rows, shape, dtype, rows.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _broadcast_vision_rows(
    rows: Array, shape: tuple[int, ...], dtype: DTypeLike, rows_dtype: DTypeLike
) -> Array:
    del rows_dtype
    return jnp.broadcast_to(rows.astype(dtype)[(None,) * (len(shape) - rows.ndim)], shape)


def _repeat_backward(
    shape: tuple[int, ...], dtype: DTypeLike, rows_dtype: DTypeLike, ndim: int, gradient: Array
) -> tuple[Array]:
    del dtype
    leading = tuple(range(len(shape) - ndim))
    return (jnp.sum(gradient.astype(jnp.float32), axis=leading).astype(rows_dtype),)


_broadcast_vision_rows.defvjp(
    lambda rows, *static: (_broadcast_vision_rows(rows, *static), rows.ndim), _repeat_backward
)


class LayerNorm(nnx.Module):
    """Normalizes the last axis, in float32. Source: flax.linen.LayerNorm."""

    def __init__(self, width: int, *, eps: float = 1e-6) -> None:
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((width,)))
        self.bias = nnx.Param(jnp.zeros((width,)))

    def __call__(self, x: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        """Returns `x` with zero mean and unit variance, scaled and shifted."""
        full = x.astype(jnp.float32)
        # Centered first, then squared: the mean of squares minus the square of the mean loses
        # digits.
        centered = full - jnp.mean(full, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
        normal = centered * jax.lax.rsqrt(variance + self.eps)
        return (
            normal * broadcast_row(self.scale[...], normal) + broadcast_row(self.bias[...], normal)
        ).astype(x.dtype)


class Linear(nnx.Module):
    """A matrix product and a bias, in the dtype of the input."""

    def __init__(
        self,
        fan_in: int,
        fan_out: int,
        *,
        rngs: nnx.Rngs,
        zeros: bool = False,
        init: Initializer = _xavier,
    ) -> None:
        shape = (fan_in, fan_out)
        self.kernel = nnx.Param(jnp.zeros(shape) if zeros else init(rngs.params(), shape))
        self.bias = nnx.Param(jnp.zeros((fan_out,)))

    def __call__(self, x: Float[Array, "*B C"]) -> Float[Array, "*B D"]:
        """Returns `x @ kernel + bias`."""
        return add_row(x @ self.kernel[...].astype(x.dtype), self.bias[...])


class Mlp(nnx.Module):
    """Two linear layers with an activation between them, by default a tanh-approximated GELU."""

    def __init__(
        self, width: int, hidden: int, *, rngs: nnx.Rngs, activation: Activation = "gelu_tanh"
    ) -> None:
        self.activation: Activation = activation
        self.up = Linear(width, hidden, rngs=rngs)
        self.down = Linear(hidden, width, rngs=rngs)

    def __call__(self, x: Float[Array, "*B C"]) -> Float[Array, "*B C"]:
        """Returns the transformed features."""
        return self.down(materialize(_gelu_activation(self.up(x), self.activation)))


def _gelu_activation(x: Array, activation: Activation) -> Array:
    if activation == "quick_gelu":
        return x * jax.nn.sigmoid(1.702 * x)
    return jax.nn.gelu(x, approximate=True)


class Attention(nnx.Module):
    """Multi-head attention from queries to keys and values, with biases everywhere.

    Its matrices are Xavier's at first, each for itself, unless `init` says otherwise of the first
    three and `out_init` of the last.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        rngs: nnx.Rngs,
        init: Initializer = _xavier,
        out_init: Initializer = _xavier,
    ) -> None:
        self.num_heads = num_heads
        self.query = Linear(width, width, rngs=rngs, init=init)
        self.key = Linear(width, width, rngs=rngs, init=init)
        self.value = Linear(width, width, rngs=rngs, init=init)
        self.out = Linear(width, width, rngs=rngs, init=out_init)

    def __call__(
        self,
        queries: Float[Array, "B N C"],
        keys: Float[Array, "B S C"],
        values: Float[Array, "B S C"],
        *,
        visible: Bool[Array, " S"] | None = None,
    ) -> Float[Array, "B N C"]:
        """Returns, for every query, the mixture of the values it attends to.

        Args:
          queries: N query rows.
          keys: S key rows.
          values: S value rows, one for each key.
          visible: which keys may be seen, the same for the whole batch; None is all.
        """
        q = (
            self._project_vision_heads(self.query, queries)
            * (queries.shape[-1] // self.num_heads) ** -0.5
        )
        k, v = (
            self._project_vision_heads(self.key, keys),
            self._project_vision_heads(self.value, values),
        )
        mask = None if visible is None else visible.reshape(1, 1, -1)
        # As groups of one head, (B, N, H, 1, d): here every query head has a key head of its own.
        read = attention(q[:, :, :, None], k, v, mask, 0.0)
        return self.out(read.reshape(queries.shape))

    def _project_vision_heads(
        self, layer: Linear, x: Float[Array, "B N C"]
    ) -> Float[Array, "B N H d"]:
        kernel = layer.kernel[...].astype(x.dtype).reshape(x.shape[-1], self.num_heads, -1)
        bias = layer.bias[...].reshape(self.num_heads, -1)
        return add_row(jnp.einsum("bnc,chd->bnhd", x, kernel), bias)


def sincos_positions(grid: int, width: int, dtype: DTypeLike = jnp.float32) -> Array:
    """Returns fixed 2-D position features of a square grid, (grid * grid, width).

    Half of the channels code the row, half the column; of each, sines come before cosines, with
    wavelengths from 2 pi to 10000 * 2 pi. Source: MQT-LLaVA, `multimodal_projector/builder.py`.
    """
    frequencies = 10_000.0 ** (-np.arange(width // 4) / (width / 4))
    # For each place on an axis C / 4 sines, then C / 4 cosines; a patch has its column's, then its
    # row's.
    angles = np.arange(grid)[:, None] * frequencies[None, :]
    axis = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
    columns, rows = np.tile(axis, (grid, 1)), np.repeat(axis, grid, axis=0)
    return jnp.asarray(np.concatenate([columns, rows], axis=-1), dtype)
