"""Stops a stage whose loss or parameters are no numbers any more, before they are saved."""

import math
from collections.abc import Iterable

import jax
import numpy as np

from model.data.loader import Examples

_NAMED = 64
"""Most records that an error names."""


class NotFiniteError(RuntimeError):
    """A step had a loss, or left parameters, that are not finite."""


class Losses:
    """The losses of a stage's steps: reading one waits for the device, so few are read at once.

    Args:
      examples: that the stage trains on.
    """

    def __init__(self, examples: Examples) -> None:
        self._examples = examples
        self._unread: dict[int, jax.Array] = {}

    def add(self, step: int, loss: jax.Array) -> None:
        """Notes the loss of a step; does not wait for it."""
        self._unread[step] = loss

    def read(self) -> float:
        """Returns the last loss, after a look at each one since the last look.

        Raises:
          NotFiniteError: if one is not finite, with its step and records.
        """
        loss = math.nan
        for step, array in self._unread.items():
            loss = float(array)
            if not math.isfinite(loss):
                raise self._error(step, f"the loss is {loss}")
        self._unread.clear()
        return loss

    def check(self, step: int, params: Iterable[np.ndarray]) -> None:
        """Looks at parameters, or parts of them, as a step has left them.

        Raises:
          NotFiniteError: if one is not finite: the losses were, so the step's gradient was not.
        """
        if not all(np.isfinite(part).all() for part in params):
            raise self._error(step, "the loss is finite, the parameters after it are not")

    def _error(self, step: int, what: str) -> NotFiniteError:
        draws = self._examples.draws(step)
        ids = ", ".join(self._examples.record(draw).id for draw in draws[:_NAMED])
        more = f" and {len(draws) - _NAMED} more" if len(draws) > _NAMED else ""
        return NotFiniteError(
            f"step {step + 1}: {what}; its records: {ids}{more}. The last resumable checkpoint is "
            f"from before it. Look at these records, or lower train.peak_lr or train.grad_clip."
        )
