"""The training step: one compiled program per declared shape, and no others."""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from infra.cores import num_cores
from model import vlm
from model.checkpoint.digest import flatten_params, unflatten_params
from model.config import ModelConfig
from model.connector import budgets
from model.data.loader import Batch
from model.sharding import (
    AXES,
    first_row,
    gather_weight,
    is_vector,
    make_mesh,
    mean_of_rows,
    mesh_for,
    param_dtype,
    partition_specs,
    shard_batch,
    shard_tree,
    shardings,
    zeros_like_part,
)
from model.text.dropout import Dropout
from model.text.packing import pack_texts
from model.train.config import LossWeights, ProgramConfig
from model.train.lora import LORA, adapter_shapes, adapters_of, new_adapters
from model.train.lora_config import LoraConfig
from model.train.optimizer import Flat, init_optimizer, optimizer, split_frozen, update_params

NUMBER, LENGTH = "number", "length"
"""Names of what a batch has for packing, for each row: see `model.train.packing`."""

SHARD = "shard"
"""Axis of the mesh of a stage with `exact_shards`; each of its devices has whole weights."""

WEIGHTS = "weights"
"""Name of the weights of a batch's targets, on the devices."""


class State(NamedTuple):
    """Parameters by path, and the optimizer's state. A step changes all but the frozen ones.

    Those it changes are float32; frozen ones are as products read them (`sharding.param_dtype`).
    """

    trained: Flat
    frozen: Flat
    optimizer: optax.OptState


class ProgramShape(NamedTuple):
    """The declared shapes of a step, each of which has its own program.

    Attributes:
      bucket: slots for soft tokens per image.
      num_images: images per example.
      packed: whether texts are packed.
    """

    bucket: int
    num_images: int
    packed: bool = False


class StepMetrics(NamedTuple):
    """Measurements of one update, still on the devices.

    Attributes:
      loss: loss of its batch, before the update.
      norms: top level of the parameters -> norm of its part of the gradient, before clipping.
    """

    loss: jax.Array
    norms: dict[str, jax.Array]


class Rates(NamedTuple):
    """The numbers of one step that are arguments of its program, not compiled into it.

    Attributes:
      learning: peak learning rate times schedule; one per group, where `train` has groups.
      decay: weight decay times schedule, likewise.
      dropout_key: see `dropout_key`; None where nothing is dropped [two words].
    """

    learning: float | tuple[float, ...]
    decay: float | tuple[float, ...]
    dropout_key: np.ndarray | None = None


def make_state(
    model: ModelConfig,
    params: dict[str, Any],
    train: ProgramConfig,
    mesh: Mesh,
    seed: int = 0,
) -> State:
    """Returns the state before the first step, on the mesh.

    Args:
      model: config of the model to train.
      params: nested dict of arrays; the same in each of the processes that share the mesh.
      train: the training recipe.
      mesh: the mesh of devices.
      seed: seed of adapters, where the recipe has some.
    """
    arrays: dict[str, Any] = dict(flatten_params(params))
    if train.lora is not None:
        arrays |= new_adapters(train.lora, arrays, seed)
    trained, frozen = split_frozen(arrays, train)
    trained, frozen = shard_tree(trained, mesh), _hold(model, frozen, mesh)
    init = functools.partial(init_optimizer, train)
    if mesh.size == 1:
        return State(trained, frozen, shard_tree(init(trained), mesh))
    # Moments are twice as large as the parameters, so they are created in parts, never as a whole
    # on one device.
    parts = shardings(jax.eval_shape(init, trained), mesh)
    return State(trained, frozen, jax.jit(init, out_shardings=parts)(trained))


def frozen_params(
    model: ModelConfig, params: dict[str, Any], train: ProgramConfig, mesh: Mesh
) -> Flat:
    """Returns the frozen part of what `make_state` returns, alone."""
    return _hold(model, split_frozen(dict(flatten_params(params)), train)[1], mesh)


def _hold(model: ModelConfig, frozen: Flat, mesh: Mesh) -> Flat:
    """Returns frozen parameters on the mesh, each in the dtype in which it is held."""

    # One at a time: beside what stays, there is only one array in float32.
    def placed(path: str, leaf: Any) -> jax.Array:
        dtype = param_dtype(path, leaf, model.dtype)
        if leaf.dtype == dtype:
            return shard_tree({path: leaf}, mesh)[path]
        shape = jax.ShapeDtypeStruct(leaf.shape, dtype)
        sharding = shardings({path: shape}, mesh)[path]
        # On the mesh, an array is rounded where it is: several processes may hold parts of it.
        if isinstance(leaf, jax.Array) and leaf.sharding.device_set == sharding.device_set:
            return jax.jit(jnp.astype, static_argnums=1, out_shardings=sharding)(leaf, dtype)
        source = np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf
        return jax.make_array_from_callback(
            leaf.shape, sharding, lambda index: source[index].astype(dtype)
        )

    return {path: placed(path, leaf) for path, leaf in frozen.items()}


def abstract_state(model: ModelConfig, train: ProgramConfig, mesh: Mesh) -> State:
    """Returns shapes, dtypes and shardings of what `make_state` returns, without any memory."""
    arrays: dict[str, Any] = dict(param_shapes(model))
    if train.lora is not None:
        shapes = adapter_shapes(train.lora, arrays)
        arrays |= {p: jax.ShapeDtypeStruct(shape, np.float32) for p, shape in shapes.items()}
    trained, frozen = split_frozen(arrays, train)
    held: dict[str, Any] = {
        path: jax.ShapeDtypeStruct(leaf.shape, param_dtype(path, leaf, model.dtype))
        for path, leaf in frozen.items()
    }
    moments = jax.eval_shape(functools.partial(init_optimizer, train), trained)
    state = State(trained, held, moments)

    def placed(leaf: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(placed, state, shardings(state, mesh))


@functools.lru_cache(maxsize=32)
def param_shapes(model: ModelConfig) -> Mapping[str, jax.ShapeDtypeStruct]:
    """Returns the shape and type of each parameter, by path; tracing a model takes a second."""
    return dict(flatten_params(vlm.abstract_params(model)))


def are_finite(params: Flat, mesh: Mesh) -> jax.Array:
    """Returns whether all numbers of the parameters are finite, computed where they are."""
    return _finite_program(mesh)(params)


@functools.cache
def _finite_program(mesh: Mesh) -> Any:
    def are_all(params: Flat) -> jax.Array:
        return functools.reduce(
            jnp.logical_and, (jnp.all(jnp.isfinite(leaf)) for leaf in params.values())
        )

    return jax.jit(are_all, out_shardings=NamedSharding(mesh, P()))


def check_devices(
    batch_size: int, field: str = "batch_size", exact_shards: int | None = None
) -> None:
    """Checks that the devices of all processes divide a batch, before anything is compiled.

    Args:
      batch_size: examples per update.
      field: name of the batch size in the config.
      exact_shards: virtual shards of the batch, which they divide; None where there are none.

    Raises:
      ValueError: if they do not, with batch sizes that would do.
    """
    devices, processes = jax.device_count(), jax.process_count()
    if exact_shards is not None and exact_shards % devices:
        raise ValueError(
            f"exact_shards must be a multiple of the {devices} devices that train together, got "
            f"{exact_shards}; take 1, 2, 4 … devices, at most {exact_shards}."
        )
    if batch_size % devices:
        of = f" of {processes} processes" if processes > 1 else ""
        near = sorted(
            {max(1, batch_size // devices) * devices, (batch_size // devices + 1) * devices}
        )
        raise ValueError(
            f"{field} must be a multiple of the {devices} devices{of} that train together, got "
            f"{batch_size}; take {' or '.join(map(str, near))}, or fewer devices."
        )


class StepPrograms:
    """Compiles at most one program per declared bucket and number of images, when first drawn.

    Where the recipe has a number as `pack`, there are two: one for batches whose texts are packed,
    and one for those that do not fit.

    Args:
      model: config of the model that is trained.
      train: the training recipe.
      mesh: the mesh of devices.
      num_images: images per example, one number for each shape of batches.
      deterministic: whether programs of a GPU give the same bits each time; those of other devices
        always do.

    A program is compiled at its first use. After `compile_ahead`, a step that needs a program not
    compiled yet is an error.
    """

    def __init__(
        self,
        model: ModelConfig,
        train: ProgramConfig,
        mesh: Mesh,
        num_images: Sequence[int] = (1,),
        *,
        deterministic: bool = True,
    ) -> None:
        self._options = compiler_options(mesh.devices.flat[0].platform, deterministic=deterministic)
        self._model, self._train, self.mesh = model, train, mesh
        self._num_images = num_images
        self._declared = set(declared_buckets(model, train))
        self._compiled: dict[ProgramShape, Any] = {}
        self._are_ahead = False

    def __call__(
        self, state: State, batch: Batch, budget: int, rates: Rates
    ) -> tuple[State, StepMetrics]:
        """Returns the state after one update, and the update's measurements; `state` is consumed.

        Raises:
          ValueError: if no declared bucket holds the budget, the examples' number of images is not
            declared, or a dropout key is missing or superfluous.
          LookupError: if programs were compiled ahead, and this step's was not.
        """
        shape, slots = self._shape_of(batch, budget, rates)
        args = state, shard_batch(batch, self.mesh), slots, rates
        if shape not in self._compiled:
            self._check_not_ahead(shape)
            self._compiled[shape] = self._compile(self.lower(args))
        return self._compiled[shape](*args)

    def _shape_of(self, batch: Batch, budget: int, rates: Rates) -> tuple[ProgramShape, vlm.Slots]:
        """Returns the shapes of an update's program, and its room for soft tokens.

        Wrong calls are refused here, before anything is compiled.
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
        num_images = batch["image"].shape[1]
        if num_images not in self._num_images:
            raise ValueError(
                f"image has {num_images} images per example, which is not declared; "
                f"declared: {sorted(self._num_images)}."
            )
        # The budget is an argument of the program, its bucket a part of the program's key: budgets
        # 66 and 96 both run as 96 slots, in the same program.
        shape = self._shape(budget, num_images, packed=LENGTH in batch)
        return shape, vlm.Slots(shape.bucket, min(budget, shape.bucket))

    def _check_not_ahead(self, shape: ProgramShape) -> None:
        """Raises `LookupError` where programs were compiled ahead, and that of a shape was not."""
        if self._are_ahead:
            raise LookupError(
                f"no program was compiled for {shape}; compiled ahead: {sorted(self._compiled)}."
            )

    def compile_ahead(self, state: State, draws: Iterable[tuple[int, int]]) -> None:
        """Compiles the programs of some steps, as many at a time as there are cores.

        Args:
          state: the state before the first of them.
          draws: (budget, images per example) of each step.
        """
        missing = [shape for shape in self._shapes_of(draws) if shape not in self._compiled]
        # Tracing is Python and runs in turn; compiling is not, and runs in threads.
        lowered = [self._lower_shapes(state, shape) for shape in missing]
        with ThreadPoolExecutor(num_cores()) as pool:
            compiled = pool.map(self._compile, lowered)
            self._compiled.update(zip(missing, compiled, strict=True))
        self._are_ahead = True

    def program(self, bucket: int, num_images: int = 1) -> jax.stages.Compiled:
        """Returns a compiled program, by the slots of its bucket and its images per example."""
        return self._compiled[ProgramShape(bucket, num_images)]

    def _shapes_of(self, draws: Iterable[tuple[int, int]]) -> list[ProgramShape]:
        """Returns the shapes of the programs that some steps may run."""
        kinds = (False, True) if self._train.text_places else (False,)
        return sorted(
            {self._shape(*draw, packed=packed) for draw in set(draws) for packed in kinds}
        )

    def _shape(self, budget: int, num_images: int, *, packed: bool) -> ProgramShape:
        """Returns the shapes of the program that a step runs."""
        # Without images no budget matters: one program serves all.
        bucket = budgets.bucket_of(self._model, budget).size if num_images else min(self._declared)
        return ProgramShape(bucket, num_images, packed)

    def _compile(self, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        return lowered.compile(compiler_options=self._options)

    def _lower_shapes(self, state: State, shape: ProgramShape) -> jax.stages.Lowered:
        batch, rates = abstract_inputs(
            self._model, self._train, self.mesh, shape.num_images, packed=shape.packed
        )
        return self.lower((state, batch, vlm.Slots(shape.bucket, shape.bucket), rates))

    def lower(self, args: tuple[Any, ...]) -> jax.stages.Lowered:
        """Returns the program before it is compiled; arguments may be shapes with shardings."""
        step = functools.partial(_step, model=self._model, train=self._train, mesh=self.mesh)
        # The new state takes over the memory of the old one (donation), which only works if both
        # are sharded alike. Plain `jit` would compile a missing program at any call; compiled
        # explicitly, an undeclared shape is an error instead of a stall of minutes.
        shardings = jax.tree.map(lambda leaf: leaf.sharding, args[0])
        return jax.jit(step, donate_argnums=0, out_shardings=(shardings, None)).lower(*args)


def compiler_options(platform: str, *, deterministic: bool) -> dict[str, bool | str]:
    """Returns the options that a step is compiled with.

    On a GPU, the gradient of the embedding is a sum in any order (a scatter), and the fastest
    kernels may differ from one compilation to the next. Without either, a step of the 3B model
    takes 6 % longer (H200, jax 0.11.2, November 2026).
    """
    if platform not in ("gpu", "cuda", "rocm"):
        return {}
    # Said either way: a worker's own flags ask for it (see `infra.ray.devices`).
    return {"xla_gpu_deterministic_ops": deterministic}


def abstract_inputs(
    model: ModelConfig,
    train: ProgramConfig,
    mesh: Mesh,
    num_images: int,
    *,
    packed: bool = False,
) -> tuple[dict[str, Any], Rates]:
    """Returns the shapes of a step's inputs besides its state: a batch and the rates."""

    def rows(*shape: int, dtype: Any = np.int32) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, P(mesh.axis_names))
        return jax.ShapeDtypeStruct((train.batch_size, *shape), dtype, sharding=sharding)

    side = model.vision.image_px
    batch = {name: rows(train.text_len + 1) for name in ("text", "mask_ar", "mask_loss")}
    batch["image"] = rows(num_images, side, side, 3, dtype=np.uint8)
    if train.text_places:
        batch[NUMBER] = rows()
    if packed:
        batch[LENGTH] = rows()
    # Weakly typed, like the Python floats that the compiled program will be called with.
    number: Any = jax.ShapeDtypeStruct((), np.float32, weak_type=True)
    if train.groups:
        number = (number,) * (len(train.groups) + 1)
    key: Any = jax.ShapeDtypeStruct((2,), np.uint32) if train.dropout else None
    return batch, Rates(number, number, key)


def declared_buckets(model: ModelConfig, train: ProgramConfig) -> tuple[int, ...]:
    """Returns the sizes of the buckets that a stage may compile [tokens per image]."""
    trained_budgets = budgets.training_budgets(model, train.budgets)
    return tuple(sorted({budgets.bucket_of(model, budget).size for budget in trained_budgets}))


def dropout_key(train: ProgramConfig, seed: int, step: int) -> np.ndarray | None:
    """Returns the key of one update's dropout, a pure function of (seed, step); None without.

    Args:
      train: the training recipe, which has the rate.
      seed: seed of dropout (see `seeds`).
      step: number of the update.
    """
    return np.random.SeedSequence([seed, step]).generate_state(2) if train.dropout else None


def mesh_of(model: ModelConfig, train: ProgramConfig, devices: Sequence[Any]) -> Mesh:
    """Returns the mesh of a stage: a config made for a pod also runs where devices are fewer."""
    if train.exact_shards is not None:
        # A process's devices are neighbours, as its rows of a batch are.
        ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
        return Mesh(np.array(ordered), (SHARD,))
    if len(devices) == 1:  # Tracing the model takes a second.
        return make_mesh(devices)
    least = math.gcd(train.num_replicas, len(devices))
    return mesh_for(param_shapes(model), devices, least_replicas=least)


def _step(
    state: State,
    batch: dict[str, jax.Array],
    slots: vlm.Slots,
    rates: Rates,
    *,
    model: ModelConfig,
    train: ProgramConfig,
    mesh: Mesh,
) -> tuple[State, StepMetrics]:
    of_rows = functools.partial(backward, model=model, train=train)
    # In: weights in the parts that `partition_specs` names, rows of the batch, and the same budget
    # and key everywhere. Out: the loss of all rows, and gradients in the parts in which weights are
    # kept.
    if mesh.size > 1:
        trained, frozen = partition_specs(state.trained, mesh), partition_specs(state.frozen, mesh)
        of_rows = jax.shard_map(
            of_rows,
            mesh=mesh,
            in_specs=(trained, frozen, P(AXES), P(), P()),
            out_specs=(P(), trained),
        )
    loss, gradients = of_rows(state.trained, state.frozen, batch, slots, rates.dropout_key)
    chain = optimizer(train, rates.learning, rates.decay)
    trained, opt_state = update_params(chain, gradients, state.optimizer, state.trained)
    return State(trained, state.frozen, opt_state), StepMetrics(loss, norms_of(gradients))


def norms_of(gradients: Flat) -> dict[str, jax.Array]:
    """Returns top level of the parameters -> norm of its part of a gradient."""
    parts: dict[str, list[jax.Array]] = {}
    for path, leaf in gradients.items():
        parts.setdefault(path.partition("/")[0], []).append(leaf)
    return {part: optax.tree.norm(leaves) for part, leaves in sorted(parts.items())}


def backward(
    trained: Flat,
    frozen: Flat,
    batch: dict[str, jax.Array],
    slots: vlm.Slots,
    dropout_key: np.ndarray | jax.Array | None,
    *,
    model: ModelConfig,
    train: ProgramConfig,
) -> tuple[jax.Array, Flat]:
    """Returns the loss of all rows, and its gradient for this device's parts of the parameters.

    Args:
      trained: this device's parts of the parameters that are trained.
      frozen: its parts of the others.
      batch: its rows; `WEIGHTS` of their targets where these are not those of the recipe.
      slots: room for soft tokens.
      dropout_key: see `dropout_key`.
      model: config of the model.
      train: the training recipe.
    """
    key = None if dropout_key is None else jax.random.wrap_key_data(dropout_key)  # type: ignore[arg-type]
    rows = len(batch["text"])

    def loss_and_gradient(part: Mapping[str, jax.Array]) -> Any:
        dropout = None if key is None else Dropout(train.dropout, key, part[NUMBER])

        def loss_fn(trained: Flat) -> jax.Array:
            params = {**trained, **frozen}
            return _weighted_loss(params, part, slots, model, train, dropout)

        # Frozen parameters are constants to `loss_fn`: the backward pass ends where they begin.
        return jax.value_and_grad(loss_fn)(trained)

    # Weights come from the whole batch, so losses and gradients of parts are added, never averaged:
    #
    #     rows of a device     r0 r1 r2 r3 r4 r5        microbatch 2
    #     parts                [r0 r1] [r2 r3] [r4 r5]  loss = sum, gradient = sum
    numbers = first_row(rows) + jnp.arange(rows)
    weighted = {NUMBER: numbers, **batch}
    if WEIGHTS not in batch:
        weighted[WEIGHTS] = loss_weights(batch["mask_loss"][:, 1:], train.loss_weights)
    if (passes := train.num_passes(rows)) == 1:
        return loss_and_gradient(weighted)
    parts = {
        name: rows_of.reshape(passes, rows // passes, *rows_of.shape[1:])
        for name, rows_of in weighted.items()
    }

    def add(sums: Any, part: Mapping[str, jax.Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, sums, loss_and_gradient(part)), None

    zeros = jnp.zeros(()), {path: zeros_like_part(leaf) for path, leaf in trained.items()}
    return jax.lax.scan(add, zeros, parts)[0]


def loss_of_rows(
    params: Flat,
    batch: Mapping[str, jax.Array],
    slots: vlm.Slots,
    model: ModelConfig,
    lora: LoraConfig | None,
) -> jax.Array:
    """Returns a batch's loss over all rows, given this device's rows; in a `shard_map` or alone.

    Examples weigh the same, whatever they do in training.

    Args:
      params: this device's parts of the parameters, and of the adapters where there are some.
      batch: this device's rows of the batch.
      slots: room for soft tokens.
      model: config of the model.
      lora: settings of the adapters; None where there are none.
    """
    weighted = {**batch, WEIGHTS: loss_weights(batch["mask_loss"][:, 1:])}
    return _weighted_loss(params, weighted, slots, model, ProgramConfig(lora=lora))


def _weighted_loss(
    params: Flat,
    batch: Mapping[str, jax.Array],
    slots: vlm.Slots,
    model: ModelConfig,
    train: ProgramConfig,
    dropout: Dropout | None = None,
) -> jax.Array:
    """Returns the loss of this device's rows, or a part of them, as a mean over devices.

    Args:
      params: this device's parts of the parameters.
      batch: the rows, and the weight of each of their targets.
      slots: room for soft tokens.
      model: config of the model.
      train: the training recipe, for label smoothing and adapters.
      dropout: dropout in the decoder; None drops nothing.
    """
    # Matrices of a tower are gathered layer by layer, where they are computed; all else here.
    # Vectors, which every device has, too: the sum of their gradients over the devices is then one
    # for all layers, and not one in each.
    weights = {
        path: leaf
        if "/blocks/" in path and not is_vector(path)
        else gather_weight(leaf, leaf.dtype if is_vector(path) else model.dtype)
        for path, leaf in params.items()
    }
    adapters = None if train.lora is None else adapters_of(train.lora, weights)
    # Lengths are there where the texts of these rows fit into their places.
    packing = None
    if LENGTH in batch:
        (rows, text_len), num_images = batch["mask_loss"].shape, batch["image"].shape[1]
        packing = pack_texts(
            batch[LENGTH], num_images * slots.bucket, text_len - 1, rows * train.text_places
        )
    loss = vlm.loss(
        vlm.structure(model),
        unflatten_params({p: leaf for p, leaf in weights.items() if not p.startswith(LORA)}),
        vlm.Example(batch["image"], batch["text"], batch["mask_ar"], batch["mask_loss"]),
        slots,
        batch[WEIGHTS],
        label_smoothing=train.label_smoothing,
        dropout=dropout,
        adapters=adapters,
        packing=packing,
    )
    return mean_of_rows(loss)


def loss_weights(mask_loss: jax.Array, equal: LossWeights = "examples") -> jax.Array:
    """Returns the weight of each of this device's targets in the mean loss of its rows.

    Where examples weigh the same, the loss is a mean over them of their mean over targets, and one
    without targets counts as 0, not as absent. Where tokens do, it is a mean over all targets of
    the batch, those of other devices included.

    Source: big_vision `trainers/proj/paligemma/train.py`, for examples.
    """
    # Two examples with 2 and 4 targets, by examples: each target of the first weighs 1/2/2, of the
    # second 1/4/2. By tokens, each weighs 1/6; on two devices with 6 and 2 targets, 1/4: the mean
    # over devices of the sums of 6 and 2 quarters of a loss is that of 8 eighths.
    has_loss = (mask_loss > 0).astype(jnp.float32)
    if equal == "tokens":
        mean = mean_of_rows(jnp.sum(has_loss))  # Below 1 where devices outnumber targets.
        return has_loss / jnp.where(mean > 0, mean, 1.0)
    count = jnp.maximum(jnp.sum(has_loss, axis=1, keepdims=True), 1.0)
    return has_loss / count / len(has_loss)
