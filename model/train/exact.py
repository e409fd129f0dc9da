"""Updates with the same bytes on any number of devices: gradients are added in a fixed tree.

A batch has N virtual shards (`exact_shards`). Each is computed alone, by the same program for one
device, wherever it runs; then losses and gradients are added pair by pair:

    shard             0   1   2   3   4   5   6   7
                      └─+─┘   └─+─┘   └─+─┘   └─+─┘
                        └───+───┘       └───+───┘
                            └───────+───────┘
    on two devices    device 0        device 1       the last sum of the two crosses over
    on four           0       1       2       3      the last two

A device has consecutive shards, so what it adds alone is a whole branch. Devices then exchange
their sums with the one at distance 1, 2, 4 …, and both add: a + b and b + a are the same bits. Each
has the sum of all at the end, whole weights and moments, and makes the same update by one program
more.

A sum over devices of the compiler's (`psum`) has another order for each number of devices, and a
program compiled for several devices other kernels than one for one.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from infra.cores import num_cores
from model import vlm
from model.config import ModelConfig
from model.data.loader import Batch
from model.train.config import ProgramConfig
from model.train.optimizer import Flat, optimizer, update_params
from model.train.step import (
    LENGTH,
    NUMBER,
    SHARD,
    WEIGHTS,
    ProgramShape,
    Rates,
    State,
    StepMetrics,
    StepPrograms,
    abstract_inputs,
    backward,
    loss_weights,
    norms_of,
)


class ShardSums(NamedTuple):
    """What shards are added up from. Each leaf has a first axis of one element, for the exchange.

    Attributes:
      loss: sum of losses.
      weight: what the loss is a mean over: number of examples, or of target tokens.
      gradients: gradients of the sum of losses.
    """

    loss: jax.Array
    weight: jax.Array
    gradients: Flat


class ExactPrograms(StepPrograms):
    """The programs of a stage with `exact_shards`; see `StepPrograms`, and the module's docstring.

    Each local device has its own copy of each program. A shard's texts are packed where they fit,
    whatever others do.
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
        super().__init__(model, train, mesh, num_images, deterministic=deterministic)
        assert train.exact_shards
        # On a CPU, a matrix product that is shared by threads depends on their number, and a gang's
        # processes have fewer.
        if mesh.devices.flat[0].platform == "cpu":
            self._options = {**self._options, "xla_cpu_multi_thread_eigen": False}
        self._devices = [d for d in mesh.devices.flat if d.process_index == jax.process_index()]
        self._shards_of_device = train.exact_shards // mesh.size
        # The structure of sums and state is known once there is a state.
        self._finish: _Finish | None = None

    def __call__(
        self, state: State, batch: Batch, budget: int, rates: Rates
    ) -> tuple[State, StepMetrics]:
        """Returns the state after one update, and the update's measurements; `state` is consumed.

        Raises:
          ValueError, LookupError: as `StepPrograms`.
        """
        shape, slots = self._shape_of(batch, budget, rates)
        shards = self._split(batch)
        for packed in {LENGTH in shard for shard in shards}:
            self._compile_shape(state, shape._replace(packed=packed))
        states = [_on_device(state, number) for number in range(len(self._devices))]
        finish = self._finish_of(state)
        # Each device has its first shard, then each its second, so that all compute at once. Two
        # sums of equally many shards are added as soon as both are there:
        #
        #     shards done    1     2     3       4
        #     sums kept      s0    s01   s01 s2  s0123
        sums: list[list[ShardSums]] = [[] for _ in self._devices]
        for turn in range(self._shards_of_device):
            for number, (device, own) in enumerate(zip(self._devices, states, strict=True)):
                shard = shards[number * self._shards_of_device + turn]
                run = self._compiled[shape._replace(packed=LENGTH in shard)][number]
                placed = jax.device_put(shard, device)
                kept = sums[number]
                kept.append(run(own.trained, own.frozen, placed, slots, rates.dropout_key))
                for _ in range(_num_pairs(turn)):
                    right = kept.pop()
                    kept.append(finish.add[number](kept.pop(), right))
        totals = finish.exchange([of_device.pop() for of_device in sums])
        trained, moments, metrics = zip(
            *(
                apply(own.trained, own.optimizer, total, rates)
                for apply, own, total in zip(finish.apply, states, totals, strict=True)
            ),
            strict=True,
        )
        state = State(_join(trained, self.mesh), state.frozen, _join(moments, self.mesh))
        return state, metrics[0]

    def compile_ahead(self, state: State, draws: Iterable[tuple[int, int]]) -> None:
        """Compiles the programs of some steps; see `StepPrograms.compile_ahead`."""
        for shape in self._shapes_of(draws):
            self._compile_shape(state, shape)
        self._finish_of(state)
        self._are_ahead = True

    def lower(self, args: tuple[Any, ...]) -> jax.stages.Lowered:
        """Returns the program of a shard before it is compiled, on the device of its arguments.

        Args:
          args: the state, a shard's rows, slots and rates, or their shapes with shardings.
        """
        state, shard, slots, rates = args
        shard_sums = functools.partial(_shard_sums, model=self._model, train=self._train)
        of_shard = state.trained, state.frozen, shard, slots, rates.dropout_key
        return jax.jit(shard_sums).lower(*of_shard)

    def _split(self, batch: Batch) -> list[Batch]:
        """Returns this process's rows of a batch by shard, with the numbers of their examples."""
        num_shards = len(self._devices) * self._shards_of_device
        rows = len(batch["text"]) // num_shards
        first = jax.process_index() * len(batch["text"])
        numbers = np.arange(first, first + len(batch["text"]), dtype=np.int32)
        shards = []
        for number in range(num_shards):
            here = slice(number * rows, (number + 1) * rows)
            shard = {name: array[here] for name, array in {NUMBER: numbers, **batch}.items()}
            if LENGTH in shard and shard[LENGTH][0] < 0:  # Its texts do not fit.
                del shard[LENGTH]
            shards.append(shard)
        return shards

    def _compile_shape(self, state: State, shape: ProgramShape) -> None:
        if shape in self._compiled:
            return
        self._check_not_ahead(shape)
        shard, rates = abstract_inputs(
            self._model, self._train, self.mesh, shape.num_images, packed=shape.packed
        )
        rows = self._train.batch_size // (self._train.exact_shards or 1)
        shard = {
            name: jax.ShapeDtypeStruct((rows, *each.shape[1:]), each.dtype)
            for name, each in shard.items()
        }
        shard[NUMBER] = jax.ShapeDtypeStruct((rows,), np.int32)
        slots = vlm.Slots(shape.bucket, shape.bucket)
        # One text, lowered and compiled for each local device.
        lowered = [
            self.lower((_abstract(state, device), _abstract(shard, device), slots, rates))
            for device in self._devices
        ]
        with ThreadPoolExecutor(num_cores()) as pool:
            self._compiled[shape] = list(pool.map(self._compile, lowered))

    def _finish_of(self, state: State) -> "_Finish":
        """Returns the programs that follow those of the shards; compiles them once."""
        if self._finish is None:
            _, rates = abstract_inputs(self._model, self._train, self.mesh, 1)
            self._finish = _Finish(
                state, rates, self._train, self.mesh, self._devices, self._compile
            )
        return self._finish


class _Finish:
    """The programs that add shards and devices, and make the update.

    Args:
      state: a state, for its shapes.
      rates: shapes of rates.
      train: the training recipe.
      mesh: the mesh of devices.
      devices: those of this process.
      compiled: function that compiles a program.

    Attributes:
      add: for each device, the program that adds two sums.
      apply: for each device, the program that makes the update.
    """

    def __init__(
        self,
        state: State,
        rates: Rates,
        train: ProgramConfig,
        mesh: Mesh,
        devices: Sequence[Any],
        compiled: Callable[[jax.stages.Lowered], jax.stages.Compiled],
    ) -> None:
        self._mesh = mesh

        def one(leaf: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype)

        number: Any = jax.ShapeDtypeStruct((1,), np.float32)
        sums = ShardSums(number, number, jax.tree.map(one, state.trained))
        self.add: list[Any] = []
        self.apply: list[Any] = []
        update = functools.partial(_apply, train=train)
        for device in devices:
            own, here = _abstract(sums, device), _abstract(state, device)
            self.add.append(compiled(jax.jit(_add, donate_argnums=0).lower(own, own)))
            apply = jax.jit(update, donate_argnums=(0, 1))
            self.apply.append(compiled(apply.lower(here.trained, here.optimizer, own, rates)))
        if mesh.size > 1:
            split = NamedSharding(mesh, P(SHARD))
            whole = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(
                    (mesh.size, *leaf.shape[1:]), leaf.dtype, sharding=split
                ),
                sums,
            )
            specs = P(SHARD)
            step = jax.shard_map(
                functools.partial(_exchange, size=mesh.size),
                mesh=mesh,
                in_specs=specs,
                out_specs=specs,
            )
            self._exchange: Any = compiled(jax.jit(step, donate_argnums=0).lower(whole))

    def exchange(self, sums: Sequence[ShardSums]) -> list[ShardSums]:
        """Returns the sum over all devices of all processes, on each local device."""
        if self._mesh.size == 1:
            return list(sums)
        split = NamedSharding(self._mesh, P(SHARD))

        def join(*leaves: jax.Array) -> jax.Array:
            shape = (self._mesh.size, *leaves[0].shape[1:])
            return jax.make_array_from_single_device_arrays(shape, split, list(leaves))

        total = self._exchange(jax.tree.map(join, *sums))
        return [_on_device(total, number) for number in range(len(sums))]


def _shard_sums(
    trained: Flat,
    frozen: Flat,
    shard: dict[str, jax.Array],
    slots: vlm.Slots,
    dropout_key: np.ndarray | jax.Array | None,
    *,
    model: ModelConfig,
    train: ProgramConfig,
) -> ShardSums:
    """Returns the sums of a shard, on one device."""
    # Weighed so that losses are summed, not averaged: the count of all shards is not known here.
    mask = shard["mask_loss"][:, 1:]
    if train.loss_weights == "tokens":
        weights = (mask > 0).astype(jnp.float32)
        count = jnp.sum(weights)
    else:
        weights = loss_weights(mask) * len(mask)
        count = jnp.float32(len(mask))
    loss, gradients = backward(
        trained, frozen, {**shard, WEIGHTS: weights}, slots, dropout_key, model=model, train=train
    )
    return jax.tree.map(lambda leaf: leaf[None], ShardSums(loss, count, gradients))


def _num_pairs(turn: int) -> int:
    """Returns how many pairs of sums are complete after a shard: trailing ones of its number."""
    return (turn ^ (turn + 1)).bit_length() - 1


def _add(left: ShardSums, right: ShardSums) -> ShardSums:
    return jax.tree.map(jnp.add, left, right)


def _exchange(sums: ShardSums, *, size: int) -> ShardSums:
    """Returns the sum over the devices of a mesh, in a `shard_map`."""
    distance = 1
    while distance < size:
        pairs = [(device, device ^ distance) for device in range(size)]
        others = jax.tree.map(lambda leaf: jax.lax.ppermute(leaf, SHARD, pairs), sums)  # noqa: B023
        sums = _add(sums, others)
        distance *= 2
    return sums


def _apply(
    trained: Flat, moments: optax.OptState, sums: ShardSums, rates: Rates, *, train: ProgramConfig
) -> tuple[Flat, optax.OptState, StepMetrics]:
    """Returns parameters and optimizer's state after an update, and its measurements."""
    total = jax.tree.map(lambda leaf: leaf[0], sums)
    count = jnp.maximum(total.weight, 1.0)
    gradients = jax.tree.map(lambda leaf: leaf / count, total.gradients)
    chain = optimizer(train, rates.learning, rates.decay)
    trained, moments = update_params(chain, gradients, moments, trained)
    return trained, moments, StepMetrics(total.loss / count, norms_of(gradients))


def _abstract(tree: Any, device: Any) -> Any:
    """Returns the shapes and types of a tree, on one device."""
    sharding = SingleDeviceSharding(device)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
    )


def _on_device(tree: Any, number: int) -> Any:
    """Returns a tree's arrays as this process's device of a number has them, without a copy."""
    return jax.tree.map(lambda leaf: leaf.addressable_shards[number].data, tree)


def _join(parts: Sequence[Any], mesh: Mesh) -> Any:
    """Returns arrays that each device has whole, from those of this process's devices."""
    whole = NamedSharding(mesh, P())

    def join(*leaves: jax.Array) -> jax.Array:
        return jax.make_array_from_single_device_arrays(leaves[0].shape, whole, list(leaves))

    return jax.tree.map(join, *parts)
