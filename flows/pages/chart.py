"""Charts inside pages: losses by step, scores by budget; a method looks the same in all of them."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence

from flows.pages.curves import (
    CurvePoints,
    Curves,
    Log,
    drawn_curves,
    log_of,
    logged_curves,
    page_curves,
)
from flows.report.cell_text import score_text
from flows.report.cells import Report, Section
from flows.report.plot import COLORS, looks
from infra.store.store import Store

_WIDTH, _HEIGHT = 720, 250
"""Size of a drawing [pixels]."""
_LEFT, _TOP, _RIGHT, _BOTTOM = 56, 10, 12, 26
"""Margins around the curves [pixels]."""
_READ = 512
"""Number of trainings whose curves stay in memory, at most 400 points each."""
_HOVERED = 60
"""Number of points of a loss curve, from which on only some say their value under the mouse."""
_DASHES = 4
"""Number of patterns of lines in the style sheet."""
_APART = 0.09
"""Distance of two methods at one budget, as in the figures of `flows.report.plot` [octaves]."""

_MEAN = "m-4,0a4,4 0 1 0 8,0a4,4 0 1 0 -8,0"
_SEED = "m-2.5,0a2.5,2.5 0 1 0 5,0a2.5,2.5 0 1 0 -5,0"
"""Points: SVG paths, from their centres."""

COLOR_RULES = "".join(f".color{n} {{ --own: {color} }}\n" for n, color in enumerate(COLORS))
"""Style sheet of the colors of methods, those of the figures."""


def method_colors(*reports: Report) -> Mapping[str, str]:
    """Returns method -> CSS class of its color on a page about some reports.

    The colors are those of the first one's figures; methods of the others take the next.
    """
    sections = tuple(section for report in reports for section in report.sections)
    found = looks(dataclasses.replace(reports[0], sections=sections)).items()
    colors = {method: f"color{COLORS.index(color)}" for method, (color, _) in found}
    return {section.reference: "reference" for section in sections} | colors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """A curve of a chart.

    Attributes:
      label: name of the curve, shown under the mouse.
      color: CSS class of its color.
      points: (x, y) pairs.
      dash: number of its line's pattern, which tells apart what has one color.
      titles: text of each point, shown under the mouse; without them points are not drawn.
      sort: "line"; "interval", a thin line; "seed", points alone; "loss", a line whose points
        are seen under the mouse only.
    """

    label: str
    color: str
    points: CurvePoints
    dash: int = 0
    titles: Sequence[str] = ()
    sort: str = "line"

    @property
    def style(self) -> str:
        """The CSS classes of its color and pattern."""
        return f"{self.color} dash{self.dash % _DASHES}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A drawing of curves on common axes.

    Attributes:
      title: what it shows.
      keys: (name, CSS classes of its color and pattern) pairs.
      lines: (CSS classes, label, points of an SVG line) of each curve.
      marks: (CSS classes, SVG path, text under the mouse) of each point.
      values: (y [pixels], text) of the lines across.
      ticks: (x [pixels], text) along the lower edge.
      left_out: number of trainings that are not drawn.
    """

    title: str
    keys: Sequence[tuple[str, str]]
    lines: Sequence[tuple[str, str, str]]
    marks: Sequence[tuple[str, str, str]]
    values: Sequence[tuple[float, str]]
    ticks: Sequence[tuple[float, str]]
    left_out: int = 0
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    right: int = _WIDTH - _RIGHT


def chart_of(
    title: str,
    keys: Sequence[tuple[str, str]],
    curves: Iterable[Curve],
    *,
    ticks: Mapping[float, str] | None = None,
    margin: float = 0.0,
    left_out: int = 0,
) -> Chart | None:
    """Returns a drawing of curves; None if none of them has anything to draw.

    Args:
      title: what it shows.
      keys: names with the style of their curves.
      curves: the curves; one without titles is drawn from two points on.
      ticks: x -> text along the lower edge; None names the first and last step.
      margin: space left and right of the curves [units of x].
      left_out: number of trainings that are not drawn.
    """
    curves = [curve for curve in curves if len(curve.points) > 1 or curve.titles]
    if not curves:
        return None
    steps, values = zip(*(point for curve in curves for point in curve.points), strict=True)
    (first, last), (low, high) = (min(steps), max(steps)), (min(values), max(values))
    ticks = ticks or {first: f"step {first:.0f}", last: f"step {last:.0f}"}
    first, last = first - margin, last + margin
    # A range of one value counts as 1, so that nothing divides by 0.
    length, span = (last - first) or 1.0, (high - low) or 1.0
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x_of(step: float) -> float:
        return round(_LEFT + (step - first) / length * (right - _LEFT), 1)

    def y_of(value: float) -> float:
        return round(bottom - (value - low) / span * (bottom - _TOP), 1)

    return Chart(
        title=title,
        keys=keys,
        lines=[
            (
                f"{curve.sort} {curve.style}",
                curve.label,
                " ".join(f"{x_of(step)},{y_of(value)}" for step, value in curve.points),
            )
            for curve in curves
            if curve.sort != "seed"
        ],
        marks=[
            (
                f"{curve.sort} {curve.style}",
                f"M{x_of(step)},{y_of(value)}{_SEED if curve.sort == 'seed' else _MEAN}",
                text,
            )
            for curve in curves
            for (step, value), text in zip(curve.points, curve.titles, strict=False)
            if text
        ],
        values=[(y_of(value), _axis_text(value)) for value in (low, (low + high) / 2, high)],
        ticks=[(x_of(step), text) for step, text in ticks.items()],
        left_out=left_out,
    )


def _axis_text(value: float) -> str:
    """Returns a number as an axis has room for: 0.00099, 0.123, 950, 2.57k, 1.3M."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.2g}" if abs(value) < 0.01 else f"{value:.3g}"


def score_chart(section: Section, colors: Mapping[str, str]) -> Chart | None:
    """Returns the scores of a benchmark by budget: means, 95 % intervals and each seed's own.

    Args:
      section: the benchmark.
      colors: method -> CSS class of its color, as of `method_colors`.
    """
    curves: list[Curve] = []
    for number, method in enumerate(section.methods):
        color, means = colors[method], dict[tuple[float, float], str]()
        shift = _APART * (number - (len(section.methods) - 1) / 2)
        for cell in (section.cell(method, budget) for budget in sorted(section.budgets)):
            if cell.mean is None:
                continue
            x, name = math.log2(cell.budget) + shift, f"{method}@{cell.budget}"
            means[x, cell.mean] = f"{name}: {score_text(cell)}"
            ends = [(x, end) for end in (cell.low, cell.high) if end is not None]
            seeds = {f"{name}, seed {s.seed}: {s.score:.1f}": (x, s.score) for s in cell.scores}
            curves += [
                Curve(label=f"{name}: 95 %", color=color, points=ends, sort="interval"),
                Curve(
                    label=name, color=color, points=[*seeds.values()], titles=[*seeds], sort="seed"
                ),
            ]
        titles = [*means.values()]
        curves.append(Curve(label=method, color=color, points=[*means], titles=titles))
    keys = [(method, colors[method]) for method in section.methods]
    ticks = {math.log2(budget): f"{budget} tokens" for budget in section.budgets}
    title = f"{section.title}: {section.metric.replace('_', ' ') or 'score'} by budget"
    return chart_of(title, keys, curves, ticks=ticks, margin=0.45)


def loss_titles(label: str, points: CurvePoints) -> Sequence[str]:
    """Returns the texts of a loss curve's points; "" for those between, where there are many."""
    every = -(-len(points) // _HOVERED)
    if len(points) < 2:  # That is no curve.
        return ()
    return [
        "" if number % every else f"{label}: {value:.3g} at step {step:.0f}"
        for number, (step, value) in enumerate(points)
    ]


def training_charts(log: Log) -> Sequence[Chart]:
    """Returns the charts of a training's page, from its logs."""
    drawn = drawn_curves(page_curves(log)).items()
    return [chart for title, curves in drawn if (chart := curves_chart(title, curves))]


def curves_chart(title: str, curves: Curves) -> Chart | None:
    """Returns curves by step in one drawing, each in a color of its own; None if there are none."""
    drawn = [
        Curve(
            label=name or title,
            color=f"color{number % len(COLORS)}",
            points=points,
            dash=number // len(COLORS),
            titles=loss_titles(name or title, points),
            sort="loss",
        )
        for number, (name, points) in enumerate(curves.items())
    ]
    keys = [(name, curve.style) for name, curve in zip(curves, drawn, strict=True) if name]
    return chart_of(f"{title} by step", keys, drawn)


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
        log = log_of(self._store.get_cached(key))
        return drawn_curves(logged_curves(log)).get("loss", {}).get("", ())
