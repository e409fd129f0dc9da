"""Dropout that is a pure function of (key, layer, branch, example, position, channel).

Neither masked slots, nor rows that are not computed, nor how a batch is sharded change what is
dropped: a budget inside a larger bucket still equals exact truncation.
"""

import typing
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int32, PRNGKeyArray

Drop = Callable[[Float[Array, "B N D"], int], Float[Array, "B N D"]]
"""Takes what a branch of a block gives, and the branch's number."""

_BRANCHES = 2
_fold_in_each = jax.vmap(jax.random.fold_in, in_axes=(None, 0))


class Dropout(typing.NamedTuple):
    """What one update drops.

    Attributes:
      rate: of elements zeroed, static; the others are scaled up to keep the mean [fraction].
      key: of the update, traced.
    """

    rate: float
    key: PRNGKeyArray

    def row_keys(self, positions: Int32[Array, "B L"]) -> PRNGKeyArray:
        """Returns a key per example and position."""
        examples = _fold_in_each(self.key, jnp.arange(len(positions)))
        return jax.vmap(_fold_in_each)(examples, positions)


def nothing(x: Float[Array, "B N D"], branch: int) -> Float[Array, "B N D"]:
    """Drops nothing."""
    del branch
    return x


def elements(rate: float, row_keys: PRNGKeyArray, layer: Int[Array, ""]) -> Drop:
    """Returns what drops elements in one layer, each independently.

    Args:
      rate: see `Dropout`.
      row_keys: of all rows; a branch may have the last ones only.
      layer: number of it.
    """

    def drop(x: Float[Array, "B N D"], branch: int) -> Float[Array, "B N D"]:
        number = layer * _BRANCHES + branch

        def kept(key: PRNGKeyArray) -> Array:
            return jax.random.bernoulli(jax.random.fold_in(key, number), 1 - rate, x.shape[2:])

        mask = jax.vmap(jax.vmap(kept))(row_keys[:, -x.shape[1] :])
        return jnp.where(mask, x / (1 - rate), jnp.zeros_like(x))

    return drop
