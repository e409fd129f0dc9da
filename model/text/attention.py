"""Attention of decoders: rotary positions, grouped queries, soft-capped logits."""

import typing

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from model.attention import MASKED, attention
from model.text.config import RopeScaling


class Keys(typing.NamedTuple):
    """Keys, values, and which query may see which: one part of what is attended to."""

    keys: Float[Array, "B S K h"]
    values: Float[Array, "B S K h"]
    mask: Bool[Array, "B L S"]


class Rotation(typing.NamedTuple):
    """Sines and cosines that turn a head by its position; the same in every layer."""

    sin: Float[Array, "B L 1 r"]
    cos: Float[Array, "B L 1 r"]


def rotation(
    positions: Int32[Array, "B L"],
    head_dim: int,
    base: float,
    scaling: RopeScaling | None = None,
) -> Rotation:
    """Returns the rotation of each position, in float32."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / head_dim
    wavelengths = np.float32(base) ** exponents
    if scaling is not None:
        wavelengths = _stretch_rope_wavelengths(wavelengths, scaling)
    angles = positions.astype(jnp.float32)[:, :, None, None] / wavelengths[None, None, None]
    # The barrier keeps the compiler from computing the sines again in every layer.
    return Rotation(*jax.lax.optimization_barrier((jnp.sin(angles), jnp.cos(angles))))


def _stretch_rope_wavelengths(
    wavelengths: Float[np.ndarray, " r"], scaling: RopeScaling
) -> np.ndarray:
    """Returns wavelengths, over 2 pi, of stretched positions."""
    if scaling.kind == "linear":
        return wavelengths * np.float32(scaling.factor)
    # Between "divided in full" and "not divided" the frequencies are blended, by their turns in the
    # length of the first training:
    #
    #     turns     below low: 1 / factor      low … high: a mix      above high: 1
    turns = scaling.original_length / (2 * np.pi * wavelengths)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = np.clip((turns - low) / (high - low), 0, 1)
    frequencies = (1 - share) / (wavelengths * scaling.factor) + share / wavelengths
    return (1 / frequencies).astype(np.float32)


def rotate(x: Float[Array, "B L H h"], turn: Rotation) -> Float[Array, "B L H h"]:
    """Returns `x` with channel i of the first and of the second half rotated as one pair."""
    # Channel i and channel i + h / 2 are the two coordinates of a point, turned by position /
    # wavelength.
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [first * turn.cos - second * turn.sin, second * turn.cos + first * turn.sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def softcap(x: Float[Array, "*B"], cap: float) -> Float[Array, "*B"]:
    """Returns `cap * tanh(x / cap)`, or `x` where `cap` is 0."""
    return cap * jnp.tanh(x / cap) if cap else x


def attend(
    queries: Float[Array, "B L H h"], parts: tuple[Keys, ...], *, scale: float, cap: float
) -> Float[Array, "B L D"]:
    """Returns each query's mixture of the values of all parts, heads side by side.

    Key head k serves the queries of heads G k ... G (k + 1) - 1, where G = H / K. Logits are
    capped before they are masked; the softmax is in float32.

    Args:
      queries: rotated queries, not yet scaled.
      parts: rotated keys with their values; the softmax runs over all parts together.
      scale: factor of the queries.
      cap: soft-cap of the logits; 0 is none.
    """
    batch, length, heads, head_dim = queries.shape
    kv_heads = parts[0].keys.shape[2]
    q = (queries * scale).reshape(batch, length, kv_heads, heads // kv_heads, head_dim)
    if len(parts) == 1:
        keys, values, mask = parts[0]
        return attention(q, keys, values, mask, cap).reshape(batch, length, -1)
    # Cache and new rows stay separate arrays: joining them would copy all keys at every token. Only
    # their logits are joined, as the softmax must run over all of them.
    logits = []
    for part in parts:
        raw = jnp.einsum("blkgh,bskh->bkgls", q, part.keys, preferred_element_type=jnp.float32)
        logits.append(jnp.where(part.mask[:, None, None], softcap(raw, cap), MASKED))
    weights = jax.nn.softmax(jnp.concatenate(logits, axis=-1), axis=-1).astype(queries.dtype)
    # The weights are cut again, each cut for the values of its part.
    read, start = None, 0
    for part in parts:
        stop = start + part.keys.shape[1]
        share = jnp.einsum("bkgls,bskh->blkgh", weights[..., start:stop], part.values)
        read, start = share if read is None else read + share, stop
    assert read is not None
    return read.reshape(batch, length, heads * head_dim)
