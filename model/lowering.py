"""What the model says to the compiler: which hardware a program is for, what to keep, what to make.

None of it changes a result by more than rounding.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

KEPT = "kept"
"""Name of arrays that the backward pass finds in memory where `remat` is "minimal": outputs of
matrix products and of attention. Norms, activations and weights of attention are made again."""

Arrays = TypeVar("Arrays")


def platform() -> str:
    """Returns the platform of the program being written down: "cpu", "gpu" or "tpu"."""
    # A program for hardware that this process has not knows it from its mesh.
    mesh = jax.sharding.get_abstract_mesh()
    device = None if mesh.empty else mesh.abstract_device
    return device.platform if device else jax.default_backend()


def kept(x: Array) -> Array:
    """Returns an array that the backward pass need not make again; see `KEPT`."""
    return checkpoint_name(x, KEPT)


def policy(remat: str) -> Callable[..., bool]:
    """Returns `checkpoint`'s policy: the arrays that a block keeps beside its input."""
    return jax.checkpoint_policies.save_only_these_names(*([KEPT] if remat == "minimal" else []))


def made(x: Arrays) -> Arrays:
    """Returns arrays that are in memory before anything reads them.

    XLA likes to compute an activation inside each matrix product that reads it, once per tile of
    the product: on a TPU that can take longer than the product. A CPU never does it.
    """
    return x if platform() == "cpu" else jax.lax.optimization_barrier(x)
