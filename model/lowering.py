"""Hints to the compiler: the target hardware, arrays to keep, arrays to write to memory.

None of them changes a result by more than rounding.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

SAVED_FOR_BACKWARD = "kept"
"""Name of the arrays that `remat="minimal"` keeps for the backward pass: outputs of matrix products
and of attention. Norms, activations and attention weights are recomputed."""

Arrays = TypeVar("Arrays")


def platform() -> str:
    """Returns the platform of the program being traced: "cpu", "gpu" or "tpu"."""
    # When the target is hardware that this process lacks, only the mesh knows the platform.
    mesh = jax.sharding.get_abstract_mesh()
    device = None if mesh.empty else mesh.abstract_device
    return device.platform if device else jax.default_backend()


def keep_for_backward(x: Array) -> Array:
    """Returns `x`, marked as an array that the backward pass saves, so it is not recomputed."""
    return checkpoint_name(x, SAVED_FOR_BACKWARD)


def policy(remat: str) -> Callable[..., bool]:
    """Returns the policy for `jax.checkpoint`: which arrays a block keeps besides its input."""
    return jax.checkpoint_policies.save_only_these_names(
        *([SAVED_FOR_BACKWARD] if remat == "minimal" else [])
    )


def materialize(x: Arrays) -> Arrays:
    """Returns the arrays, forced into memory before anything reads them.

    XLA likes to compute an activation inside each matrix product that reads it, once per tile of
    the product: on a TPU that can take longer than the product. A CPU never does it.
    """
    return x if platform() == "cpu" else jax.lax.optimization_barrier(x)
