"""The training step: one compiled program per shape bucket, and none besides."""

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from model import vlm
from model.checkpoint.digest import flatten, unflatten
from model.config import ModelConfig
from model.connector import budgets
from model.data.loader import Batch
from model.sharding import AXES, make_mesh, mean_of_rows, shard_batch, shard_tree, specs, whole
from model.text.dropout import Dropout
from model.train.config import TrainConfig
from model.train.optimizer import Flat, init_optimizer, optimizer, split_frozen, update_params


class State(NamedTuple):
    """Parameters by path, and the optimizer's state. A step changes all but the frozen ones."""

    trained: Flat
    frozen: Flat
    optimizer: optax.OptState


class Rates(NamedTuple):
    """The numbers of one step that are arguments of its program, not part of it.

    Attributes:
      learning: peak learning rate times schedule.
      decay: weight decay times schedule.
      dropout_key: see `dropout_key`; None where nothing is dropped [two words].
    """

    learning: float
    decay: float
    dropout_key: np.ndarray | None = None


def make_state(params: dict[str, Any], train: TrainConfig, mesh: Mesh) -> State:
    """Returns the state before the first step, on the mesh."""
    trained, frozen = split_frozen(dict(flatten(params)), train)
    return shard_tree(State(trained, frozen, init_optimizer(train, trained)), mesh)


def params_of(state: State) -> dict[str, Any]:
    """Returns all parameters of a state as a nested dict."""
    return unflatten({**state.trained, **state.frozen})


class StepPrograms:
    """Compiles at most one program per declared bucket and number of images, when first drawn.

    Args:
      model: what is trained.
      train: how.
      mesh: of the devices.
      num_images: images per example, one number for each shape of batches.

    Attributes:
      compile_seconds: time spent compiling so far [s].
    """

    def __init__(
        self, model: ModelConfig, train: TrainConfig, mesh: Mesh, num_images: Sequence[int] = (1,)
    ) -> None:
        self._model, self._train, self.mesh = model, train, mesh
        self._num_images = num_images
        self._declared = set(declared_buckets(model, train))
        self._compiled: dict[tuple[Any, ...], Any] = {}
        self.compile_seconds = 0.0

    def __call__(
        self, state: State, batch: Batch, budget: int, rates: Rates
    ) -> tuple[State, jax.Array]:
        """Returns the state after one update, and the loss before it; `state` is used up.

        Raises:
          ValueError: if the budget lies in none of the declared buckets, or the examples have
            another number of images than is declared.
        """
        bucket = budgets.bucket_of(self._model, budget).size
        if bucket not in self._declared:
            raise ValueError(
                f"budget {budget} needs a program for {bucket} tokens, which is not declared; "
                f"declared: {sorted(self._declared)}. Add the budget to train.budgets."
            )
        if (rates.dropout_key is None) != (not self._train.dropout):
            raise ValueError(
                f"dropout_key must be given exactly where train.dropout={self._train.dropout} is "
                f"above 0, got {rates.dropout_key}; take it from `dropout_key`."
            )
        if batch["image"].shape[1] not in self._num_images:
            raise ValueError(
                f"image has {batch['image'].shape[1]} images per example, which is not declared; "
                f"declared: {sorted(self._num_images)}."
            )
        args = state, shard_batch(batch, self.mesh), vlm.Slots(bucket, budget), rates
        shapes = tuple(sorted((name, value.shape) for name, value in batch.items()))
        key = (bucket, shapes)
        if key not in self._compiled:
            self._compiled[key] = self.compile(args)
        return self._compiled[key](*args)

    def compile(self, args: tuple[Any, ...]) -> Any:
        """Returns the program for arguments like these; they may be shapes with shardings."""
        started = time.monotonic()
        step = functools.partial(_step, model=self._model, train=self._train, mesh=self.mesh)
        # The new state takes over the memory of the old one (donation), which only works if it
        # lies on the devices in the same way. `jit` would compile a program it lacks at any call;
        # compiled ahead, an undeclared shape is an error instead of a stall of minutes.
        shardings = jax.tree.map(lambda leaf: leaf.sharding, args[0])
        jitted = jax.jit(step, donate_argnums=0, out_shardings=(shardings, None))
        compiled = jitted.lower(*args).compile()
        self.compile_seconds += time.monotonic() - started
        return compiled


def declared_buckets(model: ModelConfig, train: TrainConfig) -> tuple[int, ...]:
    """Returns the shapes that a stage may compile [tokens per image]."""
    drawn = budgets.training_budgets(model, train.budgets)
    return tuple(sorted({budgets.bucket_of(model, budget).size for budget in drawn}))


def dropout_key(train: TrainConfig, seed: int, step: int) -> np.ndarray | None:
    """Returns the key of one update's dropout, a pure function of (seed, step); None without.

    Args:
      train: its rate.
      seed: of dropout (see `seeds`).
      step: the update.
    """
    return np.random.SeedSequence([seed, step]).generate_state(2) if train.dropout else None


def step_programs(
    model: ModelConfig, train: TrainConfig, num_images: Sequence[int] = (1,)
) -> StepPrograms:
    """Returns the programs of a stage; stages that differ in numbers only share them."""
    shared = dataclasses.replace(
        train,
        total_steps=1,
        peak_lr=1.0,
        warmup=0.0,
        schedule="constant",
        weight_decay=0.0,
        mixture=(),
        sampling="without_replacement",
        save_steps=1,
        log_steps=1,
    )
    return _cached_programs(model, shared, tuple(jax.devices()), tuple(num_images))


@functools.lru_cache(maxsize=4)
def _cached_programs(
    model: ModelConfig, train: TrainConfig, devices: Any, num_images: tuple[int, ...]
) -> StepPrograms:
    return StepPrograms(model, train, make_mesh(devices), num_images)


def _step(
    state: State,
    batch: dict[str, jax.Array],
    slots: vlm.Slots,
    rates: Rates,
    *,
    model: ModelConfig,
    train: TrainConfig,
    mesh: Mesh,
) -> tuple[State, jax.Array]:
    backward = functools.partial(_backward, model=model, train=train)
    if mesh.size > 1:
        trained, frozen = specs(state.trained, mesh), specs(state.frozen, mesh)
        backward = jax.shard_map(
            backward,
            mesh=mesh,
            in_specs=(trained, frozen, P(AXES), P(), P()),
            out_specs=(P(), trained),
        )
    loss, gradients = backward(state.trained, state.frozen, batch, slots, rates.dropout_key)
    chain = optimizer(train, rates.learning, rates.decay)
    trained, kept = update_params(chain, gradients, state.optimizer, state.trained)
    return State(trained, state.frozen, kept), loss


def _backward(
    trained: Flat,
    frozen: Flat,
    batch: dict[str, jax.Array],
    slots: vlm.Slots,
    dropout_key: np.ndarray | jax.Array | None,
    *,
    model: ModelConfig,
    train: TrainConfig,
) -> tuple[jax.Array, Flat]:
    """Returns the loss of all rows, and its gradient by this device's parts of the parameters."""
    key = None if dropout_key is None else jax.random.wrap_key_data(dropout_key)  # type: ignore[arg-type]
    dropout = None if key is None else Dropout(train.dropout, key)

    def loss_fn(trained: Flat) -> jax.Array:
        # Layers of a tower are gathered one by one, where they are computed; all else is small.
        params = {
            path: leaf if "/blocks/" in path else whole(leaf, model.dtype)
            for path, leaf in {**trained, **frozen}.items()
        }
        losses = vlm.token_losses(
            vlm.structure(model),
            unflatten(params),
            vlm.Example(batch["image"], batch["text"], batch["mask_ar"], batch["mask_loss"]),
            slots,
            label_smoothing=train.label_smoothing,
            dropout=dropout,
        )
        return mean_of_rows(batch_loss(losses, batch["mask_loss"][:, 1:]))

    # Frozen parameters are constants to `loss_fn`: the backward pass ends where they begin.
    return jax.value_and_grad(loss_fn)(trained)


def batch_loss(losses: jax.Array, mask_loss: jax.Array) -> jax.Array:
    """Returns the mean over examples of their mean over supervised tokens; none of them is 0.

    Source: big_vision `trainers/proj/paligemma/train.py`.
    """
    count = jnp.maximum(jnp.sum(mask_loss, axis=1), 1).astype(losses.dtype)
    return jnp.mean(jnp.sum(losses, axis=1) / count)
