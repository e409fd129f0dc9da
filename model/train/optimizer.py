"""The optimizer chain of big_vision: clip, Adam, learning rate, decay, schedule.

Source: big_vision `optax.py` and `utils.py` (`create_learning_rate_schedule`). The decay is added
after the learning rate: a step takes away weight_decay * schedule of a parameter.
"""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from model.train.config import TrainConfig

Flat = dict[str, jax.Array]

DECAYED = re.compile(r".*/kernel$")
"""Parameters that decay: kernels of the vision tower and the projector (big_vision's default)."""
VISION = re.compile(r"^vision/")
"""Parameters of the vision tower, kept by `freeze_vision`."""

_B1, _EPS = 0.9, 1e-8
_RSQRT_TIMESCALE = 10_000.0


class Moments(NamedTuple):
    """Adam's running means of gradients and of their squares, by path; the updates so far."""

    first: Flat
    second: Flat
    updates: Int32[Array, ""]


def schedule(train: TrainConfig, step: int) -> float:
    """Returns the factor on the learning rate at a step, in [0, 1]; step 0 of a warm-up is 0."""
    warmup = train.warmup * train.total_steps
    factor = min(1.0, step / warmup) if warmup >= 1 else 1.0
    if train.schedule == "cosine":
        done = min(1.0, max(0.0, (step - warmup) / max(1.0, train.total_steps - warmup)))
        return factor * 0.5 * (1 + math.cos(math.pi * done))
    if train.schedule == "rsqrt":
        return factor / math.sqrt(1 + max(0.0, step - warmup) / _RSQRT_TIMESCALE)
    return factor


def init_moments(params: Flat) -> Moments:
    """Returns the moments before the first update, float32."""
    zeros = {path: jnp.zeros(value.shape, jnp.float32) for path, value in params.items()}
    return Moments(zeros, {path: jnp.zeros_like(value) for path, value in zeros.items()},
                   jnp.int32(0))  # fmt: skip


def clip_by_global_norm(gradients: Flat, limit: float) -> Flat:
    """Returns the gradients scaled down so that their joint norm is at most `limit`."""
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g.astype(jnp.float32))) for g in gradients.values()))
    scale = jnp.minimum(1.0, limit / jnp.maximum(norm, 1e-16))
    return {path: gradient * scale.astype(gradient.dtype) for path, gradient in gradients.items()}


def adam_direction(gradients: Flat, moments: Moments, b2: float) -> tuple[Flat, Moments]:
    """Returns Adam's bias-corrected direction, and the moments after it."""
    count = moments.updates + 1
    done = count.astype(jnp.float32)
    first_unbias, second_unbias = 1 - _B1**done, 1 - b2**done

    def blend(old: Float[Array, "..."], new: Float[Array, "..."], keep: float) -> jax.Array:
        return keep * old + (1 - keep) * new.astype(jnp.float32)

    first = {p: blend(moments.first[p], g, _B1) for p, g in gradients.items()}
    second = {p: blend(moments.second[p], jnp.square(g), b2) for p, g in gradients.items()}
    direction = {
        p: (first[p] / first_unbias) / (jnp.sqrt(second[p] / second_unbias) + _EPS) for p in first
    }
    return direction, Moments(first, second, count)


def apply_update(
    params: Flat,
    direction: Flat,
    rate: Float[Array, ""],
    weight_decay: Float[Array, ""],
) -> Flat:
    """Returns the parameters after one update.

    Args:
      params: path -> value.
      direction: Adam's output for them.
      rate: peak learning rate times schedule.
      weight_decay: decay times schedule; reaches `DECAYED` only.
    """

    def one(path: str) -> jax.Array:
        value = params[path].astype(jnp.float32)
        change = rate * direction[path]
        if DECAYED.match(path):
            change = change + weight_decay * value
        return (value - change).astype(params[path].dtype)

    return {path: one(path) for path in params}


def split_frozen(params: Mapping[str, jax.Array], train: TrainConfig) -> tuple[Flat, Flat]:
    """Returns (trained, frozen) parameters; the optimizer never sees frozen ones."""
    frozen = {p: v for p, v in params.items() if train.freeze_vision and VISION.match(p)}
    return {p: v for p, v in params.items() if p not in frozen}, frozen
