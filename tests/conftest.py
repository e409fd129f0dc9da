"""What holds for every test: JAX on CPU, and no silent promotion of dtypes or ranks.

Set through the environment, before anything imports JAX: tests without JAX never load it.
"""

import os

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")


@pytest.fixture(scope="module")
def fast_compiler():
    """For programs that run once or twice: the compiler need not optimize."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
