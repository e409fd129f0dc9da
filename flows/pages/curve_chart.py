"""Curves of several trainings laid over each other, as a drawing inside a page."""

import dataclasses
import functools
from collections.abc import Sequence

from flows.pages.curves import CurvePoints, curves_of
from infra.store.store import Store

_WIDTH, _HEIGHT = 720, 250
"""Size of a drawing [pixels]."""
_LEFT, _TOP, _RIGHT, _BOTTOM = 56, 10, 12, 26
"""Margins around the curves [pixels]."""
_READ = 512
"""Number of trainings whose curves stay in memory, at most 400 points each."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingCurve:
    """The loss of one training.

    Attributes:
      label: name of the training.
      group: number of what its color stands for, a method or a side.
      points: (step, loss) pairs.
    """

    label: str
    group: int
    points: CurvePoints


@dataclasses.dataclass(frozen=True, kw_only=True)
class CurveChart:
    """A drawing of curves on common axes.

    Attributes:
      title: what it shows.
      groups: names of the groups, in the order of their numbers.
      lines: (group, label, points of an SVG line) of each curve.
      values: (y [pixels], text) of the lines across.
      steps: first and last step.
      left_out: number of trainings that are not drawn.
    """

    title: str
    groups: Sequence[str]
    lines: Sequence[tuple[int, str, str]]
    values: Sequence[tuple[float, str]]
    steps: tuple[float, float]
    left_out: int = 0
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    right: int = _WIDTH - _RIGHT


def chart_of(
    title: str, groups: Sequence[str], curves: Sequence[TrainingCurve], left_out: int = 0
) -> CurveChart | None:
    """Returns a drawing of curves; None if no training has logged two values."""
    curves = [curve for curve in curves if len(curve.points) > 1]
    if not curves:
        return None
    steps, values = zip(*(point for curve in curves for point in curve.points), strict=True)
    (first, last), (low, high) = (min(steps), max(steps)), (min(values), max(values))
    # A range of one value counts as 1, so that nothing divides by 0.
    length, span = (last - first) or 1.0, (high - low) or 1.0
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def y_of(value: float) -> float:
        return round(bottom - (value - low) / span * (bottom - _TOP), 1)

    lines = [
        (
            curve.group,
            curve.label,
            " ".join(
                f"{_LEFT + (step - first) / length * (right - _LEFT):.1f},{y_of(value)}"
                for step, value in curve.points
            ),
        )
        for curve in curves
    ]
    across = [(y_of(value), f"{value:.3g}") for value in (low, (low + high) / 2, high)]
    return CurveChart(
        title=title,
        groups=groups,
        lines=lines,
        values=across,
        steps=(first, last),
        left_out=left_out,
    )


class LossReader:
    """Reads the losses of trainings, and keeps them; safe to share between threads.

    Args:
      store: the store of the trainings.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.points = functools.lru_cache(maxsize=_READ)(self._read)

    def _read(self, key: str) -> CurvePoints:
        """Returns the (step, loss) pairs of a training; none if its files are gone."""
        return curves_of(self._store.get_cached(key)).get("loss", {}).get("", ())
