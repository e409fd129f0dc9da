"""How a training step lies on many devices: rows of the batch stay, weights come and go.

Every device has some rows of the batch, and nothing of them ever moves: the loss is one
`jax.shard_map`, in which the only traffic is of weights and their gradients. (Left to the
compiler's partitioner, the decoder's activations followed the embedding instead: split along
their width, the batch copied to every chip, 259 GB of temporaries on each of 256.)

Weights lie in parts along a mesh axis (fully sharded data parallelism). `whole` gathers those of
one layer where that layer is computed, in the dtype of the activations, and adds their gradients
up in float32 on the way back:

    forward   part ──cast──▶ all-gather ──▶ whole weight
    backward  part ◀── sum over replicas ◀── reduce-scatter ◀──float32── gradient

The mesh has two axes. Weights are split along "fsdp", whose chips are neighbours; "replica" holds
as many copies, so that a gather asks few chips and a sum over copies moves parts only. A tower too
narrow for "fsdp" may be split along "replica" instead, unless copies lie in different TPU slices.

Where several processes have a mesh together, each holds the parts of its own devices only: it
hands in its own rows of a batch, and no device ever has an array that is split.
"""

import functools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

REPLICA, FSDP = AXES = ("replica", "fsdp")
"""Axes of the mesh; rows of a batch are split along both."""

RULES: tuple[tuple[str, str], ...] = (
    (r".*/(scale|bias)$", "replicate"),
    (r".*", "rows"),
)
"""Name pattern -> how to split; the first that matches decides. "rows": along the last dimension
but one, if the array is over 4 MiB."""

_MIN_BYTES = 4 * 2**20
_TILE_ROWS = 8
"""Rows of a tile of a TPU's memory: a part of 36 rows takes the room of 40."""
_MOST_PADDING = 0.05


def make_mesh(devices: Sequence[Any] | None = None, *, num_replicas: int = 1) -> Mesh:
    """Returns the mesh over all devices, or the given ones.

    Of several TPU slices each holds whole copies of the weights, at least one: only sums of
    gradients cross between slices, whose network is slow.

    Args:
      devices: to use.
      num_replicas: copies of the weights; of several slices, the least multiple of theirs.

    Raises:
      ValueError: if the copies do not divide the devices.
    """
    devices = list(devices if devices is not None else jax.devices())
    slices = len(_slices(devices))
    num_replicas = math.lcm(num_replicas, slices)
    if len(devices) % num_replicas:
        raise ValueError(
            f"num_replicas must divide the {len(devices)} devices, got {num_replicas}."
        )
    shape = (num_replicas // slices, len(devices) // num_replicas)
    if slices == 1:
        return Mesh(mesh_utils.create_device_mesh(shape, devices), AXES)
    return Mesh(mesh_utils.create_hybrid_device_mesh(shape, (slices, 1), devices), AXES)


def _slices(devices: Iterable[Any]) -> set[int]:
    # A GPU has a slice index, too, that of its host, whose network is that of all; a chip of one
    # slice that is only compiled for has none.
    return {getattr(d, "slice_index", 0) if d.platform == "tpu" else 0 for d in devices}


@functools.cache
def num_slices(mesh: Mesh) -> int:
    """Returns how many TPU slices a mesh spans; 1 where its devices are of none."""
    return len(_slices(mesh.devices.flat)) if isinstance(mesh, Mesh) else 1


def spec_of(path: str, shape: tuple[int, ...], itemsize: int, mesh: Mesh) -> P:
    """Returns how one parameter (or moment) is split: along the largest axis that fits its rows.

    Args:
      path: its name, parts joined by "/".
      shape: its shape.
      itemsize: bytes of one element.
      mesh: of the devices.
    """
    rule = next(how for pattern, how in RULES if re.match(pattern, path))
    if rule == "replicate" or len(shape) < 2 or np.prod(shape) * itemsize <= _MIN_BYTES:
        return P()
    within = (FSDP,) if num_slices(mesh) > 1 else AXES
    for axis in sorted(within, key=lambda axis: -mesh.shape[axis]):
        if mesh.shape[axis] > 1 and _fits(shape[-2], mesh.shape[axis]):
            return P(*(axis if dim == len(shape) - 2 else None for dim in range(len(shape))))
    return P()


def _fits(rows: int, parts: int) -> bool:
    """Returns whether parts are equal, and whole tiles up to a little padding."""
    if rows % parts:
        return False
    padding = -(rows // parts) % _TILE_ROWS
    return padding <= _MOST_PADDING * (rows // parts)


def specs(tree: Any, mesh: Mesh) -> Any:
    """Returns the tree's `PartitionSpec`s; every leaf's by the rule of its path."""

    def spec(path: Sequence[Any], leaf: Any) -> P:
        name = "/".join(str(getattr(key, "key", getattr(key, "name", key))) for key in path)
        return spec_of(name, leaf.shape, leaf.dtype.itemsize, mesh)

    return jax.tree_util.tree_map_with_path(spec, tree)


def shardings(tree: Any, mesh: Mesh) -> Any:
    """Returns the tree's `NamedSharding`s; see `specs`."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs(tree, mesh))


def shard_tree(tree: Any, mesh: Mesh) -> Any:
    """Returns the tree on the mesh (see `specs`); every process gives all of it.

    An array that lies so already stays as it is.

    Args:
      tree: arrays, or what has a shape and a dtype and gives the parts that it is asked for.
      mesh: of the devices.
    """
    tree = jax.tree.map(lambda x: x if hasattr(x, "shape") else np.asarray(x), tree)

    def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
        if not mesh.is_multi_process:
            return jax.device_put(leaf, sharding)
        if isinstance(leaf, jax.Array) and leaf.sharding == sharding:
            return leaf
        parts = np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf
        return jax.make_array_from_callback(leaf.shape, sharding, lambda index: parts[index])

    return jax.tree.map(put, tree, shardings(tree, mesh))


def shard_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Returns the batch on the mesh, split along its first dimension.

    Args:
      batch: its rows; of several processes each gives its own.
      mesh: of the devices.

    Raises:
      ValueError: if the devices do not divide the batch.
    """
    size = len(next(iter(batch.values())))
    devices = mesh.local_mesh.size if mesh.is_multi_process else mesh.size
    if size % devices:
        raise ValueError(f"batch_size must be a multiple of {devices} devices, got {size}.")
    sharding = NamedSharding(mesh, P(AXES))
    if not mesh.is_multi_process:
        return jax.device_put(batch, sharding)
    rows = jax.make_array_from_process_local_data
    return {name: rows(sharding, value) for name, value in batch.items()}


def on_host(array: jax.Array) -> np.ndarray:
    """Returns a whole array; if several processes have parts of it, each of them must ask."""
    if array.is_fully_addressable:
        return np.asarray(array)
    return multihost_utils.process_allgather(array, tiled=True)


def whole(part: Float[Array, "*R C"], dtype: DTypeLike) -> Float[Array, "*S C"]:
    """Returns a weight as its layer reads it; in a step on one device, just as it is.

    Args:
      part: this device's rows of it (or all, where it is not split).
      dtype: of the activations; vectors (scales and biases) keep their own.
    """
    axes = jax.sharding.get_abstract_mesh().manual_axes
    if not axes:
        return part
    varying = jax.typeof(part).manual_axis_type.varying
    split = tuple(axis for axis in axes if axis in varying)
    copied = tuple(axis for axis in axes if axis not in split)
    return _gather(part, dtype if part.ndim > 1 else part.dtype, split, copied)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _gather(
    part: Array, dtype: DTypeLike, split: tuple[str, ...], copied: tuple[str, ...]
) -> Array:
    weight = part.astype(dtype)
    if split:
        weight = jax.lax.all_gather(weight, split, axis=part.ndim - 2, tiled=True)
    return jax.lax.pcast(weight, copied, to="varying") if copied else weight


def _gather_forward(part: Array, dtype: DTypeLike, split: tuple, copied: tuple) -> tuple:
    return _gather(part, dtype, split, copied), None


def _gather_backward(
    dtype: DTypeLike, split: tuple, copied: tuple, _: None, gradient: Array
) -> tuple[Array]:
    del dtype
    # Each device has the gradient of its own rows of the batch: hundreds of bfloat16 numbers would
    # be added up, with 8 bits each.
    gradient = gradient.astype(jnp.float32)
    if split:
        rows = gradient.ndim - 2
        gradient = jax.lax.psum_scatter(gradient, split, scatter_dimension=rows, tiled=True)
    return (jax.lax.psum(gradient, copied) if copied else gradient,)


_gather.defvjp(_gather_forward, _gather_backward)


def own(x: Array) -> Array:
    """Returns an array that each device is going to change by its own rows."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return jax.lax.pcast(x, axes, to="varying") if axes else x


def first_row(num_rows: int) -> Int[Array, ""] | int:
    """Returns the number, in the whole batch, of the first of this device's rows."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return jax.lax.axis_index(axes) * num_rows if axes else 0


def mean_of_rows(mean: Float[Array, ""]) -> Float[Array, ""]:
    """Returns the mean over all rows, of the mean over this device's."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return jax.lax.pmean(mean, axes) if axes else mean
