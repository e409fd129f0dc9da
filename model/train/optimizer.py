"""The optimizer of big_vision: clip, Adam, learning rate, decay, schedule; made of optax.

Source: big_vision `optax.py` and `utils.py` (`create_learning_rate_schedule`). An update equals
that formula, written out in float32, up to rounding: about 1e-7 of a parameter, as optax divides
and multiplies where it clips, and raises Adam's decays to an integer count.
"""

import re
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from model.train.config import TrainConfig

Flat = dict[str, jax.Array]

DECAYED = re.compile(r".*/kernel$")
"""Parameters that decay: kernels of the vision tower and the projector (big_vision's default)."""
VISION = re.compile(r"^vision/")
"""Parameters of the vision tower, kept by `freeze_vision`."""

_B1, _EPS = 0.9, 1e-8
_RSQRT_TIMESCALE = 10_000.0


def optimizer(
    train: TrainConfig,
    learning: Float[Array, ""] | float = 0.0,
    decay: Float[Array, ""] | float = 0.0,
) -> optax.GradientTransformation:
    """Returns the transformation of gradients (by path) into what is added to the parameters.

    The rates are arguments, which a step makes anew from numbers it is given: what optax keeps
    between steps does not depend on them, so a program serves every rate, and every stage.

    The decay comes after the learning rate, not before it as in AdamW: a step takes away
    weight_decay * schedule of a parameter, however small the learning rate is.

    Args:
      train: clipping and Adam's b2.
      learning: peak learning rate times schedule.
      decay: weight decay times schedule; reaches `DECAYED` only.
    """
    return optax.chain(
        optax.clip_by_global_norm(train.grad_clip),
        optax.scale_by_adam(b1=_B1, b2=train.b2, eps=_EPS),
        optax.scale(learning),  # type: ignore[arg-type]
        optax.add_decayed_weights(decay, mask=_decayed),  # type: ignore[arg-type]
        optax.scale(-1.0),
    )


def init_optimizer(train: TrainConfig, params: Flat) -> optax.OptState:
    """Returns what the optimizer keeps before the first update: moments of 0, like the params."""
    return optimizer(train).init(params)


def update_params(
    chain: optax.GradientTransformation, gradients: Flat, state: optax.OptState, params: Flat
) -> tuple[Flat, optax.OptState]:
    """Returns the parameters, and what the optimizer keeps, after one update."""
    # optax raises a Python float to the power of an integer count, which strict promotion, where
    # it is switched on, refuses.
    with jax.numpy_dtype_promotion("standard"):
        updates, state = chain.update(gradients, state, params)
        changed = optax.apply_updates(params, updates)
    return changed, state  # type: ignore[return-value]


def schedule(train: TrainConfig) -> Float[np.ndarray, " steps"]:
    """Returns the factor on the learning rate at every step, in [0, 1]; a warm-up starts at 0.

    All at once: read one by one, these would make the host wait for the device at every step.
    """
    warmup = train.warmup * train.total_steps
    after = {
        "cosine": optax.cosine_decay_schedule(1.0, max(1.0, train.total_steps - warmup)),  # type: ignore[arg-type]
        "rsqrt": _rsqrt,
        "constant": optax.constant_schedule(1.0),
    }[train.schedule]
    # A warm-up may end between two steps; one of less than a step is none.
    before = optax.linear_schedule(0.0, 1.0, warmup) if warmup >= 1 else lambda step: 1.0  # type: ignore[arg-type]
    joined = optax.join_schedules([before, after], [warmup])  # type: ignore[list-item]
    with jax.numpy_dtype_promotion("standard"):
        steps = jnp.arange(train.total_steps, dtype=jnp.float32)
        return np.broadcast_to(np.asarray(joined(steps)), steps.shape)


def split_frozen(params: Mapping[str, jax.Array], train: TrainConfig) -> tuple[Flat, Flat]:
    """Returns (trained, frozen) parameters.

    Frozen ones have no gradient, no moments and no part in the norm that is clipped: the optimizer
    never sees them, which is simpler than optax's masks over a whole tree.
    """
    frozen = {p: v for p, v in params.items() if train.freeze_vision and VISION.match(p)}
    return {p: v for p, v in params.items() if p not in frozen}, frozen


def _decayed(params: Flat) -> dict[str, bool]:
    return {path: bool(DECAYED.match(path)) for path in params}


def _rsqrt(step: Float[Array, " steps"]) -> Float[Array, " steps"]:
    """The inverse square root of the steps after warm-up; optax has no such schedule."""
    # Steps of the warm-up count below 0 here, and are overruled; they must not become NaN.
    return jax.lax.rsqrt(1.0 + jnp.maximum(step, 0.0) / _RSQRT_TIMESCALE)
