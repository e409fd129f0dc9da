"""Where arrays live: one mesh axis "data", batches split along it, large parameters too (FSDP).

Source of the rule: big_vision `sharding.py` (fsdp, min_size_to_shard_mb=4).
"""

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

AXIS = "data"
_MIN_BYTES = 4 * 2**20

RULES: tuple[tuple[str, str], ...] = (
    (r".*/(scale|bias)$", "replicate"),
    (r".*", "largest"),
)
"""Name pattern -> how to split; the first that matches decides. "largest": along the largest
dimension that the devices divide, if the array is over 4 MiB."""


def make_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """Returns the mesh over all devices, or the given ones."""
    return Mesh(np.asarray(devices if devices is not None else jax.devices()), (AXIS,))


def spec_of(path: str, shape: tuple[int, ...], itemsize: int, num_devices: int) -> P:
    """Returns how one parameter (or moment) is split.

    Args:
      path: its name, parts joined by "/".
      shape: its shape.
      itemsize: bytes of one element.
      num_devices: devices along the axis.
    """
    rule = next(how for pattern, how in RULES if re.match(pattern, path))
    if rule == "replicate" or num_devices == 1 or np.prod(shape) * itemsize <= _MIN_BYTES:
        return P()
    # The largest dimension first, so that every device's part is a solid block.
    for dim in sorted(range(len(shape)), key=lambda d: -shape[d]):
        if shape[dim] % num_devices == 0:
            return P(*(AXIS if d == dim else None for d in range(len(shape))))
    return P()


def shard_tree(tree, mesh: Mesh):
    """Returns the tree on the mesh; every leaf by the rule of its path."""

    def place(path, leaf):
        leaf = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
        name = "/".join(str(getattr(key, "key", getattr(key, "name", key))) for key in path)
        spec = spec_of(name, leaf.shape, leaf.dtype.itemsize, mesh.size)
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree_util.tree_map_with_path(place, tree)


def shard_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Returns the batch on the mesh, split along its first dimension.

    Raises:
      ValueError: if the devices do not divide the batch.
    """
    size = len(next(iter(batch.values())))
    if size % mesh.size:
        raise ValueError(f"batch_size must be a multiple of {mesh.size} devices, got {size}.")
    return jax.device_put(batch, NamedSharding(mesh, P(AXIS)))
