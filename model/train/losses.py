"""Checks that a stage's losses and parameters are finite, before they are saved."""

import math

import jax

from model.data.loader import Examples

_MAX_IDS = 64
"""Largest number of records that an error names."""


class NotFiniteError(RuntimeError):
    """A step had a loss, or left parameters, that are not finite."""


class Losses:
    """The losses of a stage's steps. Reading one waits for the device, so they are read rarely.

    Args:
      examples: the examples that the stage trains on.

    Attributes:
      last: the loss that was read last; NaN before the first.
    """

    def __init__(self, examples: Examples) -> None:
        self.last = math.nan
        self._examples = examples
        self._unread: dict[int, jax.Array] = {}

    def add(self, step: int, loss: jax.Array) -> None:
        """Keeps the loss of a step for later; does not wait for it."""
        self._unread[step] = loss

    def read(self) -> None:
        """Waits for the losses since the last read, and checks them.

        Raises:
          NotFiniteError: if one is not finite, with its step and records.
        """
        for step, array in self._unread.items():
            self.last = float(array)
            if not math.isfinite(self.last):
                raise self._not_finite_error(step, f"the loss is {self.last}")
        self._unread.clear()

    def check(self, step: int, are_finite: jax.Array) -> None:
        """Checks the parameters after a step, given whether all of them are finite.

        Raises:
          NotFiniteError: if one is not finite: the losses were, so the step's gradient was not.
        """
        if not bool(are_finite):
            raise self._not_finite_error(
                step, "the loss is finite, but the parameters after the update are not"
            )

    def _not_finite_error(self, step: int, problem: str) -> NotFiniteError:
        draws = self._examples.draws(step)
        ids = ", ".join(self._examples.record(draw).id for draw in draws[:_MAX_IDS])
        more = f" and {len(draws) - _MAX_IDS} more" if len(draws) > _MAX_IDS else ""
        return NotFiniteError(
            f"step {step + 1}: {problem}; its records: {ids}{more}. The last resumable checkpoint "
            f"is from before it. Look at these records, or lower train.peak_lr or train.grad_clip."
        )
