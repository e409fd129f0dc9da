"""Checks that a stage's losses and parameters are finite, and notes losses that jump."""

import collections
import math
import statistics
from collections.abc import Iterator

import jax

from model.data.loader import Examples

_MAX_IDS = 64
"""Largest number of records that an error names."""


_LEAST, _RECENT = 20, 100
"""Fewest losses that a jump can be seen from, and most [steps]."""
_FAR, _SHARE = 10.0, 0.2
"""A jump is farther above the median of the losses before it than so many of their median absolute
deviations (6.7 standard deviations, of a normal distribution), and than this share of it."""


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
        self._recent = collections.deque[float](maxlen=_RECENT)
        self._jumps: dict[str, float] = {}

    def add(self, step: int, loss: jax.Array) -> None:
        """Keeps the loss of a step for later; does not wait for it."""
        self._unread[step] = loss

    def read(self) -> Iterator[str]:
        """Waits for the losses since the last read, and checks them; yields a line on each jump.

        Raises:
          NotFiniteError: if one is not finite, with its step and records.
        """
        for step, array in self._unread.items():
            self.last = float(array)
            if not math.isfinite(self.last):
                raise self._not_finite_error(step, f"the loss is {self.last}")
            if len(self._recent) >= _LEAST:
                middle = statistics.median(self._recent)
                spread = statistics.median(abs(loss - middle) for loss in self._recent)
                if self.last - middle > max(_FAR * spread, _SHARE * middle):
                    self._jumps[str(step + 1)] = round(self.last, 5)
                    yield (
                        f"step {step + 1}: the loss jumps to {self.last:.4g}, from {middle:.4g} in "
                        f"the steps before; its records: {self._record_ids(step)}"
                    )
            self._recent.append(self.last)
        self._unread.clear()

    def take_jumps(self) -> dict[str, float]:
        """Returns step -> loss of the jumps since the last call."""
        taken, self._jumps = self._jumps, {}
        return taken

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
        return NotFiniteError(
            f"step {step + 1}: {problem}; its records: {self._record_ids(step)}. The last "
            f"resumable checkpoint is from before it. Look at these records (`parcel lineage "
            f"losses` has the loss of each), or lower train.peak_lr or train.grad_clip."
        )

    def _record_ids(self, step: int) -> str:
        draws = self._examples.draws(step)
        ids = ", ".join(self._examples.record(draw).id for draw in draws[:_MAX_IDS])
        return ids + (f" and {len(draws) - _MAX_IDS} more" if len(draws) > _MAX_IDS else "")
