"""The optimizer of big_vision, built from optax: clip, Adam, learning rate, decay, schedule.

Source: big_vision `optax.py` and `utils.py` (`create_learning_rate_schedule`). An update equals
that formula, written out in float32, up to rounding of about 1e-7 of a parameter: optax clips by
dividing and multiplying, and raises Adam's decays to an integer count.
"""

import dataclasses
import functools
import re
from collections.abc import Collection, Hashable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from model.train.config import GroupConfig, ProgramConfig, TrainConfig
from model.train.lora import LORA

Flat = dict[str, jax.Array]

DECAYED = re.compile(r".*/kernel$")
"""Parameters that decay, by big_vision's default: kernels of the tower and of the projector. Those
of the connector, which it does not have, decay alike."""
VISION = re.compile(r"^vision/")
"""Parameters of the vision tower, kept by `freeze_vision: true`."""
IMAGE_SIDE = re.compile(r"^(vision|connector|projector)/")
"""Parameters of all that comes before the decoder, kept by `freeze_vision: all`."""
TEXT = re.compile(r"^text/")
"""Parameters of the decoder, kept by `freeze_text` and where adapters are trained instead."""

_B1, _EPS = 0.9, 1e-8

PerGroup = tuple[float | Float[Array, ""], ...]
"""A rate for each of `train.groups`, then that of all other parameters."""


def optimizer(
    train: ProgramConfig,
    learning: Float[Array, ""] | float | PerGroup = 0.0,
    decay: Float[Array, ""] | float | PerGroup = 0.0,
) -> optax.GradientTransformation:
    """Returns the transformation of gradients (by path) into what is added to the parameters.

    Each step builds the chain again around its own rates. The optimizer's state does not depend on
    the rates, so one program serves every rate, and every stage.

    The decay comes after the learning rate, not before it as in AdamW: a step removes
    weight_decay * schedule of a parameter, however small the learning rate is.

    Args:
      train: the training recipe: clipping, Adam's b2, and the groups of parameters.
      learning: peak learning rate times schedule; one per group, if there are groups.
      decay: weight decay times schedule, likewise; applies to `DECAYED` only.
    """
    return optax.chain(
        optax.clip_by_global_norm(train.grad_clip),
        optax.scale_by_adam(b1=_B1, b2=train.b2, eps=_EPS),
        *_rate_and_decay_transforms(train, learning, decay),
        optax.scale(-1.0),
    )


def _rate_and_decay_transforms(
    train: ProgramConfig,
    learning: Float[Array, ""] | float | PerGroup,
    decay: Float[Array, ""] | float | PerGroup,
) -> tuple[optax.GradientTransformation, ...]:
    """Returns the transformations that multiply Adam's direction and add the decay."""
    # What Adam gives is a direction; then, with and without groups:
    #
    #     direction ─▶ * learning ─▶ + decay * weight (kernels only) ─▶ * -1 ─▶ update
    if not train.groups:
        return (
            optax.scale(learning),  # type: ignore[arg-type]
            optax.add_decayed_weights(decay, mask=_weight_decay_mask),  # type: ignore[arg-type]
        )
    # The same two steps for each group, with its own numbers; the last chain is for all parameters
    # that are in no group.
    plain = dataclasses.replace(train, groups=())
    num = len(train.groups) + 1
    rates = learning if isinstance(learning, tuple) else (learning,) * num
    decays = decay if isinstance(decay, tuple) else (decay,) * num
    chains: dict[Hashable, optax.GradientTransformation] = {
        i: optax.chain(*_rate_and_decay_transforms(plain, rates[i], decays[i])) for i in range(num)
    }
    return (
        optax.partition(chains, lambda params: {path: group_of(train, path) for path in params}),
    )


def group_of(train: ProgramConfig, path: str) -> int:
    """Returns the index of a parameter's group in `train.groups`; their number if it is in none."""
    matching = (i for i, g in enumerate(train.groups) if re.fullmatch(g.params, path))
    return next(matching, len(train.groups))


def init_optimizer(train: ProgramConfig, params: Flat) -> optax.OptState:
    """Returns the optimizer's state before the first update: two moments of 0 per parameter."""
    return optimizer(train).init(params)


def update_params(
    chain: optax.GradientTransformation, gradients: Flat, state: optax.OptState, params: Flat
) -> tuple[Flat, optax.OptState]:
    """Returns the parameters and the optimizer's state after one update."""
    # optax raises a Python float to the power of an integer count, which JAX refuses where strict
    # dtype promotion is on.
    with jax.numpy_dtype_promotion("standard"):
        updates, state = chain.update(gradients, state, params)
        changed = optax.apply_updates(params, updates)
    return changed, state  # type: ignore[return-value]


def lr_schedules(train: TrainConfig) -> Float[np.ndarray, "groups steps"]:
    """Returns `lr_schedule` for each of `train.groups`, then for all other parameters."""

    def of_group(group: GroupConfig) -> TrainConfig:
        stated = {"warmup": group.warmup, "rsqrt_shift": group.rsqrt_shift}
        return dataclasses.replace(
            train, **{name: value for name, value in stated.items() if value is not None}
        )

    return np.stack([lr_schedule(config) for config in (*map(of_group, train.groups), train)])


def lr_schedule(train: TrainConfig) -> Float[np.ndarray, " steps"]:
    """Returns the factor on the learning rate at every step, in [0, 1]; a warm-up starts at 0.

    They are computed all at once: one by one, the host would wait for the device at every step.
    """
    # 1.0 |      ___            cosine: to 0 at the last step
    #     |     /    \__        rsqrt: still above 0 at the last step
    #     |    /        \_      constant: stays at 1
    # 0.0 |___/___________\_    step
    #        warm-up
    warmup = train.warmup * train.total_steps
    decay = {
        "cosine": optax.cosine_decay_schedule(1.0, max(1.0, train.total_steps - warmup)),  # type: ignore[arg-type]
        "rsqrt": functools.partial(_inverse_square_root_decay, train=train),
        "constant": optax.constant_schedule(1.0),
    }[train.schedule]
    # A shifted "rsqrt" starts below 1, so its warm-up must end at that level. A warm-up may end
    # between two steps; one shorter than a step counts as none.
    level = (1.0 + train.rsqrt_shift / train.rsqrt_timescale) ** -0.5
    level = level if train.schedule == "rsqrt" else 1.0
    warmup_ramp = optax.linear_schedule(0.0, level, warmup) if warmup >= 1 else lambda step: level  # type: ignore[arg-type]
    rate_at = optax.join_schedules([warmup_ramp, decay], [warmup])  # type: ignore[list-item]
    with jax.numpy_dtype_promotion("standard"):
        steps = jnp.arange(train.total_steps, dtype=jnp.float32)
        return np.broadcast_to(np.asarray(rate_at(steps)), steps.shape)


def split_frozen(params: Mapping[str, jax.Array], train: ProgramConfig) -> tuple[Flat, Flat]:
    """Returns (trained, frozen) parameters.

    Frozen ones have no gradient, no moments and no part in the clipped norm: the optimizer never
    sees them, which is simpler than optax's masks over a whole tree.
    """
    frozen_groups = {i for i, group in enumerate(train.groups) if group.lr == 0}
    freezes_text = train.freeze_text or train.lora is not None
    kept = {False: None, True: VISION, "all": IMAGE_SIDE}[train.freeze_vision]
    frozen = {
        p: v
        for p, v in params.items()
        if (kept is not None and kept.match(p))
        or (freezes_text and TEXT.match(p))
        or group_of(train, p) in frozen_groups
    }
    return {p: v for p, v in params.items() if p not in frozen}, frozen


def unmatched_groups(train: ProgramConfig, paths: Collection[str]) -> list[str]:
    """Returns the patterns of groups that are no parameter's first match.

    A group with a rate must reach a parameter that is trained: of a decoder with adapters, these.
    """
    trained, _ = split_frozen(dict.fromkeys(paths), train)  # type: ignore[arg-type]
    reached = {group_of(train, path) for path in paths if path in trained}
    frozen = {group_of(train, path) for path in paths}
    return [
        group.params
        for i, group in enumerate(train.groups)
        if i not in (reached if group.lr > 0 else frozen)
    ]


def frozen_adapters(train: ProgramConfig, paths: Collection[str]) -> list[str]:
    """Returns the patterns of groups of rate 0 that reach adapters, which are to be trained."""
    reached = {group_of(train, path) for path in paths if path.startswith(LORA)}
    return [group.params for i, group in enumerate(train.groups) if group.lr == 0 and i in reached]


def _weight_decay_mask(params: Flat) -> dict[str, bool]:
    return {path: bool(DECAYED.match(path)) for path in params}


def _inverse_square_root_decay(
    step: Float[Array, " steps"], train: TrainConfig
) -> Float[Array, " steps"]:
    """Returns the inverse-square-root decay after warm-up; optax has no such schedule."""
    # During warm-up `step` is negative here. The result is not used, but must not be NaN.
    num_done = jnp.maximum(step, 0.0) + train.rsqrt_shift
    return jax.lax.rsqrt(1.0 + num_done / train.rsqrt_timescale)
