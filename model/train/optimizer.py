"""The optimizer chain of big_vision: clip, Adam, learning rate, decay, schedule.

Source: big_vision `optax.py` and `utils.py` (`create_learning_rate_schedule`). The decay is added
after the learning rate: a step takes away weight_decay * schedule of a parameter.
"""

import math
import re
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax

from model.train.config import TrainConfig

Flat = dict[str, jax.Array]

DECAYED = re.compile(r".*/kernel$")
"""Parameters that decay: kernels of the vision tower and the projector (big_vision's default)."""
VISION = re.compile(r"^(vision|img)/")
"""Parameters of the vision tower, kept by `freeze_vision`."""

_RSQRT_TIMESCALE = 10_000.0


def schedule(train: TrainConfig, step: int) -> float:
    """Returns the factor on the learning rate at a step, in [0, 1]."""
    warmup = train.warmup * train.total_steps
    factor = min(1.0, step / warmup) if warmup >= 1 else 1.0
    if train.schedule == "cosine":
        done = min(1.0, max(0.0, (step - warmup) / max(1.0, train.total_steps - warmup)))
        return factor * 0.5 * (1 + math.cos(math.pi * done))
    if train.schedule == "rsqrt":
        return factor / math.sqrt(1 + max(0.0, step - warmup) / _RSQRT_TIMESCALE)
    return factor


def make_optimizer(train: TrainConfig) -> optax.GradientTransformation:
    """Returns clipping and Adam; `apply_update` does the rest."""
    return optax.chain(
        optax.clip_by_global_norm(train.grad_clip),
        optax.scale_by_adam(b1=0.9, b2=train.b2, eps=1e-8),
    )


def apply_update(params: Flat, direction: Flat, rate: jax.Array, weight_decay: jax.Array) -> Flat:
    """Returns the parameters after one update.

    Args:
      params: path -> value.
      direction: Adam's output for them.
      rate: peak learning rate times schedule.
      weight_decay: decay times schedule; reaches `DECAYED` only.
    """

    def one(path: str) -> jax.Array:
        value = params[path]
        change = rate * direction[path].astype(jnp.float32)
        if DECAYED.match(path):
            change = change + weight_decay * value.astype(jnp.float32)
        return (value.astype(jnp.float32) - change).astype(value.dtype)

    return {path: one(path) for path in params}


def split_frozen(params: Mapping[str, jax.Array], train: TrainConfig) -> tuple[Flat, Flat]:
    """Returns (trained, frozen) parameters; the optimizer never sees frozen ones."""
    frozen = {p: v for p, v in params.items() if train.freeze_vision and VISION.match(p)}
    return {p: v for p, v in params.items() if p not in frozen}, frozen
