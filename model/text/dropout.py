"""Dropout that is a pure function of (key, layer, branch, example, position, channel).

Neither masked slots, nor rows that are not computed, nor how a batch is sharded change what is
dropped: a budget inside a larger bucket still equals exact truncation.
"""

import functools
import typing
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int32, PRNGKeyArray

from model.text.packing import Packing

Drop = Callable[[Float[Array, "B N D"], int], Float[Array, "B N D"]]
"""Function (a block branch's output, the branch's number) -> the output with elements dropped."""

_BRANCHES = 2
_fold_in_each = jax.vmap(jax.random.fold_in, in_axes=(None, 0))


class Dropout(typing.NamedTuple):
    """The dropout of one update.

    Attributes:
      rate: share of elements zeroed, static; the others are scaled up to keep the mean [fraction].
      key: random key of the update, traced.
      numbers: number of each row's example in the batch.
    """

    rate: float
    key: PRNGKeyArray
    numbers: Int32[Array, " B"]

    def in_layers(
        self, positions: Int32[Array, "B L"], packing: Packing | None = None
    ) -> Callable[[Int[Array, ""]], Drop]:
        """Returns a function from layer number to that layer's dropout.

        Args:
          positions: positions of all rows; a branch may be computed for the last ones only.
          packing: where tokens are, if `positions` are packed.
        """
        # A key for every (example, position), made by folding one number in after the other: two
        # programs of different shapes then agree wherever they compute the same element.
        examples = _fold_in_each(self.key, self.numbers)
        if packing is None:
            rows = jax.vmap(_fold_in_each)(examples, positions)
        else:
            rows = jax.vmap(jax.random.fold_in)(examples[packing.rows], positions[0])[None]
        return lambda layer: functools.partial(self._drop_activations, rows, layer * _BRANCHES)

    def _drop_activations(
        self, rows: PRNGKeyArray, first: Int[Array, ""], x: Float[Array, "B N D"], branch: int
    ) -> Float[Array, "B N D"]:
        def keep_mask(key: PRNGKeyArray) -> Array:
            branch_key = jax.random.fold_in(key, first + branch)
            return jax.random.bernoulli(branch_key, 1 - self.rate, x.shape[2:])

        mask = jax.vmap(jax.vmap(keep_mask))(rows[:, -x.shape[1] :])
        return jnp.where(mask, x / (1 - self.rate), jnp.zeros_like(x))


def no_dropout(x: Float[Array, "B N D"], branch: int) -> Float[Array, "B N D"]:
    """Drops nothing."""
    del branch
    return x
