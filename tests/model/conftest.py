"""Model tests compile much and run little: the compiler need not optimize."""

import jax

jax.config.update("jax_disable_most_optimizations", True)
