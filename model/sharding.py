"""The layout of a training step on many devices: batch rows stay in place, weights are gathered.

Every device holds some rows of the batch, and these never move: the loss is one `jax.shard_map`,
whose only traffic is weights and their gradients. (Under the compiler's own partitioner, the
decoder's activations followed the embedding instead: they were split along their width, and the
batch was copied to every chip, with 259 GB of temporaries on each of 256 chips.)

Weights are split along a mesh axis (fully sharded data parallelism). `gather_weight` gathers a
layer's weights where that layer is computed, in the dtype of the activations, and sums their
gradients in float32 on the way back:

    forward   part ──cast──▶ all-gather ──▶ whole weight
    backward  part ◀── sum over replicas ◀── reduce-scatter ◀──float32── gradient

The mesh has two axes. Weights are split along "fsdp", whose chips are neighbours, and copied along
"replica": a gather then involves few chips, and a sum over copies moves parts only. A tower too
narrow for "fsdp" may be split along "replica" instead, unless the copies are on different TPU
slices.

Where several processes share a mesh, each holds only the parts on its own devices and hands in only
its own rows of a batch.
"""

import contextlib
import functools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AbstractMesh, Mesh, NamedSharding
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
"""Most rows of padding that a part may need, as a share of its rows."""


def is_vector(path: str) -> bool:
    """Returns whether a parameter is a scale or a bias, of one layer or of all in one array."""
    return next(spec for pattern, spec in RULES if re.match(pattern, path)) == "replicate"


def param_dtype(path: str, leaf: Any, dtype: DTypeLike) -> np.dtype:
    """Returns the dtype in which a parameter that is only read is held on a device.

    Products read a matrix in the dtype of the activations, so held in that one it gives the same
    numbers. Scales and biases keep their own, in which norms are computed; so does the connector,
    which may be a user's and read them in any.

    Args:
      path: the parameter's name, parts joined by "/".
      leaf: the parameter, or its shape and dtype.
      dtype: dtype of the activations.
    """
    keeps = is_vector(path) or path.startswith("connector/")
    return np.dtype(leaf.dtype if keeps else dtype)


def make_mesh(devices: Sequence[Any] | None = None, *, num_replicas: int = 1) -> Mesh:
    """Returns the mesh over all devices, or the given ones.

    Each of several TPU slices holds at least one whole copy of the weights, so that only sums of
    gradients cross the slow network between slices.

    Args:
      devices: the devices to use; None takes all.
      num_replicas: copies of the weights; raised to a multiple of the number of TPU slices.

    Raises:
      ValueError: if the copies do not divide the devices, or the torus of these TPUs.
    """
    devices = list(devices if devices is not None else jax.devices())
    slices = len(_device_slice_indices(devices))
    num_replicas = math.lcm(num_replicas, slices)
    if len(devices) % num_replicas:
        raise ValueError(
            f"num_replicas must divide the {len(devices)} devices, got {num_replicas}."
        )
    # 8 chips of 2 slices, 2 copies: one copy per slice, each over 4 chips. The mesh is (2, 4), and
    # neighbours along "fsdp" are always of one slice.
    shape = (num_replicas // slices, len(devices) // num_replicas)
    if slices == 1:
        try:
            return Mesh(mesh_utils.create_device_mesh(shape, devices), AXES)
        # A copy has whole axes of the torus: of 16x16 chips that is 16, and 32 would be two halves.
        except NotImplementedError:
            accepted = ", ".join(
                str(n) for n in range(1, len(devices) + 1) if _is_torus_divisible(devices, n)
            )
            raise ValueError(
                f"num_replicas must be one of {accepted} on these {len(devices)} TPUs, whose torus "
                f"has no other equal parts, got {num_replicas}."
            ) from None
    return Mesh(mesh_utils.create_hybrid_device_mesh(shape, (slices, 1), devices), AXES)


def mesh_for(params: Any, devices: Sequence[Any], *, least_replicas: int = 1) -> Mesh:
    """Returns the mesh over some devices with the fewest copies at which most weights are split.

    Rows do not divide over any number of devices: 2304 of them over 256 would be 9 each, so that
    every device would hold all. With 8 copies they are 72 each, on 32 devices.

    Args:
      params: the model's parameters or their shapes.
      devices: the devices to use.
      least_replicas: a number that divides the copies, and the devices.

    Raises:
      ValueError: if the torus of these TPUs has not as many equal parts, and no more copies help.
    """
    for copies in range(least_replicas, len(devices) + 1, least_replicas):
        # Some numbers do not divide the devices, others not the torus.
        with contextlib.suppress(ValueError):
            mesh = make_mesh(devices, num_replicas=copies)
            if splits_weights(params, mesh):
                return mesh
    return make_mesh(devices, num_replicas=least_replicas)  # A small model is split nowhere.


def splits_weights(params: Any, mesh: Mesh | AbstractMesh) -> bool:
    """Returns whether more than half of a model's numbers are split along "fsdp"."""
    leaves = jax.tree.leaves(params)
    specs = jax.tree.leaves(partition_specs(params, mesh))
    num_split = sum(leaf.size for leaf, spec in zip(leaves, specs, strict=True) if FSDP in spec)
    return 2 * num_split > sum(leaf.size for leaf in leaves)


def _is_torus_divisible(devices: Sequence[Any], num_replicas: int) -> bool:
    """Returns whether the torus of some TPUs has so many equal parts of whole axes."""
    if len(devices) % num_replicas:
        return False
    try:
        mesh_utils.create_device_mesh((num_replicas, len(devices) // num_replicas), devices)
    except NotImplementedError:
        return False
    return True


def _device_slice_indices(devices: Iterable[Any]) -> set[int]:
    # A GPU's slice index only names its host, and all hosts share one network: GPUs count as one
    # slice. A TPU chip that is only compiled for has no index if there is just one slice.
    return {getattr(d, "slice_index", 0) if d.platform == "tpu" else 0 for d in devices}


@functools.cache
def num_slices(mesh: Mesh | AbstractMesh) -> int:
    """Returns the number of TPU slices that a mesh spans; 1 if its devices are not TPUs."""
    return len(_device_slice_indices(mesh.devices.flat)) if isinstance(mesh, Mesh) else 1


def spec_of(path: str, shape: tuple[int, ...], itemsize: int, mesh: Mesh | AbstractMesh) -> P:
    """Returns how a parameter or moment is split: along the largest mesh axis that fits its rows.

    Args:
      path: the parameter's name, parts joined by "/".
      shape: its shape.
      itemsize: bytes of one element.
      mesh: the mesh of devices.
    """
    # On a mesh of replica 2 and fsdp 8, by the rules above:
    #
    #     text/embedding                  (257152, 2304)     P("fsdp", None)        32144 rows each
    #     text/blocks/gate                (26, 2304, 9216)   P(None, "fsdp", None)  288 rows each
    #     vision/blocks/attn_norm/scale   (27, 1152)         P()                    a copy each
    if is_vector(path) or len(shape) < 2 or np.prod(shape) * itemsize <= _MIN_BYTES:
        return P()
    # A mesh of other axes keeps whole weights on each device (`model.train.exact`).
    within = (FSDP,) if num_slices(mesh) > 1 else (FSDP, REPLICA)
    within = [axis for axis in within if axis in mesh.shape]
    for axis in sorted(within, key=lambda axis: -mesh.shape[axis]):
        if mesh.shape[axis] > 1 and _fills_weight_tiles(shape[-2], mesh.shape[axis]):
            return P(*(axis if dim == len(shape) - 2 else None for dim in range(len(shape))))
    return P()


def _fills_weight_tiles(rows: int, parts: int) -> bool:
    """Returns whether the parts would be equal, and fill whole tiles up to a little padding."""
    if rows % parts:
        return False
    # 144 rows are 18 tiles, without padding. 36 rows need 4 rows of padding, 11 %: too many.
    padding = -(rows // parts) % _TILE_ROWS
    return padding <= _MOST_PADDING * (rows // parts)


def partition_specs(tree: Any, mesh: Mesh | AbstractMesh) -> Any:
    """Returns the tree of `PartitionSpec`s, each chosen by its leaf's path; see `spec_of`."""

    def spec(path: Sequence[Any], leaf: Any) -> P:
        name = "/".join(str(getattr(key, "key", getattr(key, "name", key))) for key in path)
        return spec_of(name, leaf.shape, leaf.dtype.itemsize, mesh)

    return jax.tree_util.tree_map_with_path(spec, tree)


def shardings(tree: Any, mesh: Mesh) -> Any:
    """Returns the tree of `NamedSharding`s; see `partition_specs`."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), partition_specs(tree, mesh))


def shard_tree(tree: Any, mesh: Mesh) -> Any:
    """Returns the tree placed on the mesh by `partition_specs`; every process passes all of it.

    An array that is already placed like this is returned as it is.

    Args:
      tree: arrays, or objects with a shape and a dtype that return the parts they are indexed by.
      mesh: the mesh of devices.
    """
    tree = jax.tree.map(lambda x: x if hasattr(x, "shape") else np.asarray(x), tree)

    def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
        # One process can place the whole tree. Of several, each hands in the parts that its own
        # devices hold; `device_put` would want the other processes' parts as well.
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
      batch: rows of the batch; each of several processes passes its own.
      mesh: the mesh of devices.

    Raises:
      ValueError: if the devices do not divide the batch.
    """
    size = len(next(iter(batch.values())))
    devices = mesh.local_mesh.size if mesh.is_multi_process else mesh.size
    if size % devices:
        raise ValueError(f"batch_size must be a multiple of {devices} devices, got {size}.")
    sharding = NamedSharding(mesh, P(mesh.axis_names))
    if not mesh.is_multi_process:
        return jax.device_put(batch, sharding)
    rows = jax.make_array_from_process_local_data
    return {name: rows(sharding, value) for name, value in batch.items()}


def on_host(array: jax.Array) -> np.ndarray:
    """Returns a whole array; if several processes hold parts of it, all of them must call this."""
    if array.is_fully_addressable:
        return np.asarray(array)
    return multihost_utils.process_allgather(array, tiled=True)


def gather_weight(part: Float[Array, "*R C"], dtype: DTypeLike) -> Float[Array, "*S C"]:
    """Returns the whole weight for the layer that reads it; on one device, the weight as it is.

    Args:
      part: this device's rows of the weight (all rows, if it is not split).
      dtype: dtype of the activations; vectors (scales and biases) keep their own.
    """
    # A weight of 8 rows, split on four devices; each has all rows only while the layer runs:
    #
    #     device           0           1           2           3
    #     stored           0 1         2 3         4 5         6 7
    #     in its layer     0 1 … 7     0 1 … 7     0 1 … 7     0 1 … 7
    #     gradient kept    0 1         2 3         4 5         6 7
    axes = jax.sharding.get_abstract_mesh().manual_axes
    if not axes:
        return part
    varying = jax.typeof(part).manual_axis_type.varying
    if varying and part.ndim < 2:
        return part  # A vector is never split: it was gathered before, with those of all layers.
    split = tuple(axis for axis in axes if axis in varying)
    copied = tuple(axis for axis in axes if axis not in split)
    return _gather_weight_part(part, dtype if part.ndim > 1 else part.dtype, split, copied)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _gather_weight_part(
    part: Array, dtype: DTypeLike, split: tuple[str, ...], copied: tuple[str, ...]
) -> Array:
    weight = part.astype(dtype)
    if split:
        weight = jax.lax.all_gather(weight, split, axis=part.ndim - 2, tiled=True)
    # Typed as varying along the axes it is copied on, so that its gradient reaches
    # `_gather_backward` device by device, before any sum.
    return jax.lax.pcast(weight, copied, to="varying") if copied else weight


def _gather_forward(part: Array, dtype: DTypeLike, split: tuple, copied: tuple) -> tuple:
    return _gather_weight_part(part, dtype, split, copied), None


def _gather_backward(
    dtype: DTypeLike, split: tuple, copied: tuple, _: None, gradient: Array
) -> tuple[Array]:
    del dtype
    # The sum runs over the rows of all devices. In bfloat16, with 8 significant bits, hundreds of
    # terms would lose too much.
    gradient = gradient.astype(jnp.float32)
    if split:
        rows = gradient.ndim - 2
        gradient = jax.lax.psum_scatter(gradient, split, scatter_dimension=rows, tiled=True)
    return (jax.lax.psum(gradient, copied) if copied else gradient,)


_gather_weight_part.defvjp(_gather_forward, _gather_backward)


def pvary(x: Array) -> Array:
    """Returns `x`, typed as different on each device, for a loop that adds this device's rows."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return jax.lax.pcast(x, axes, to="varying") if axes else x


def zeros_like_part(part: Array) -> Array:
    """Returns zeros of a weight's part's shape, dtype and type, for the sums of a loop."""
    zeros = jnp.zeros(part.shape, part.dtype)
    varying = tuple(jax.typeof(part).manual_axis_type.varying)
    return jax.lax.pcast(zeros, varying, to="varying") if varying else zeros


def first_row(num_rows: int) -> Int[Array, ""] | int:
    """Returns the index of this device's first row in the whole batch."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return jax.lax.axis_index(axes) * num_rows if axes else 0


def mean_of_rows(mean: Float[Array, ""]) -> Float[Array, ""]:
    """Returns the mean over all rows, given the mean over this device's rows."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return jax.lax.pmean(mean, axes) if axes else mean
