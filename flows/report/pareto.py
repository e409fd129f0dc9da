"""Draws mean scores against the cost of an answer, with the Pareto front."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flows.report.cells import Cell, Report, Section
from flows.report.plot import (
    DPI,
    PANEL_INCHES,
    REFERENCE_COLOR,
    draw_legend,
    figure_bytes,
    looks,
    plot_style,
)

COSTS: dict[str, Callable[[Cell], float | None]] = {
    "soft tokens": lambda cell: cell.cost and cell.cost.tokens,
    "GFLOPs of a prefill": lambda cell: cell.cost and 1000 * cell.cost.tflops,
    "KV cache [MB]": lambda cell: cell.cost and cell.cost.kv_mb,
}
MEASURED = {"measured ms of an answer": lambda cell: cell.answer_ms}
FRONT_COLOR = "#BBBBBB"
_MAX_TICKS = 6
"""Number of different costs up to which the x axis marks each of them; above, powers of two."""

Points = dict[tuple[str, int], list[Cell]]
"""(method, budget) -> its cells, one per benchmark, each with a score."""


def draw_pareto(
    report: Report, form: str = "png", of: Mapping[str, Callable[[Cell], float | None]] = COSTS
) -> bytes:
    """Returns a figure of mean scores against costs: tokens, GFLOPs and KV cache of a prompt.

    There is a row of panels per backbone, resolution and number of images in a prompt. A point is a
    method at a budget, with score and cost averaged over the benchmarks of the row. A point is
    drawn only if every one of these benchmarks has both. The grey line is the Pareto front: no
    point scores as much at the same cost or less.

    Args:
      report: the report whose cells are drawn.
      form: one of `plot.FORMS`.
      of: name of a cost -> function from a cell to that cost, None if unknown.
    """
    groups = _group_pareto_sections(report)
    with plot_style():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        # A panel per cost; a row per view and number of images, since prompts of one image and of
        # 16 frames have no common axis. A study without scores still gets a (blank) row.
        rows = max(len(groups), 1)
        size = (PANEL_INCHES[0] * len(of), PANEL_INCHES[1] * rows + 0.45)
        figure = Figure(figsize=size, dpi=DPI, layout=ConstrainedLayoutEngine(hspace=0.08))
        FigureCanvasAgg(figure)
        panels = figure.subplots(rows, len(of), squeeze=False)
        look = looks(report)
        for row, ((_, num_images), sections) in zip(panels, groups.items(), strict=False):
            points = _pareto_points(sections)
            for axes, (name, cost) in zip(row, of.items(), strict=True):
                _draw_pareto_panel(axes, points, cost, look)
                axes.set_xlabel(name)
            row[0].set_ylabel("mean score")
            what = "1 image" if num_images == 1 else f"{num_images} images"
            px, backbone = sections[0].view
            num, pixels = len(sections), f" of {px} px" if px else ""
            title = f"{what}{pixels}, {num} benchmark{'s' if num > 1 else ''}"
            row[0].set_title(f"{backbone}\n{title}" if backbone else title)
        draw_legend(figure, len(of))
        return figure_bytes(figure, form)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the (cost, score) points whose score no other point reaches at that cost or less."""
    best: list[tuple[float, float]] = []
    for cost, score in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or score > best[-1][1]:
            best.append((cost, score))
    return best


def _group_pareto_sections(report: Report) -> dict[tuple[Any, int], list[Section]]:
    """Returns (view, number of images in a prompt) -> benchmarks."""
    groups: dict[tuple[Any, int], list[Section]] = {}
    for section in report.sections:
        cost = next((c.cost for c in section.cells if c.cost), None)
        if cost is not None and section.in_means:
            groups.setdefault((section.view, cost.num_images), []).append(section)
    return groups


def _pareto_points(sections: Sequence[Section]) -> Points:
    points: Points = {}
    for method in sections[0].methods:
        for budget in sections[0].budgets:
            cells = [section.cell(method, budget) for section in sections]
            if all(cell.complete for cell in cells):
                points[method, budget] = cells
    return points


def _mean_of_cell(cell: Cell) -> float:
    assert cell.mean is not None
    return cell.mean


def _draw_pareto_panel(
    axes: Any,
    points: Points,
    cost: Callable[[Cell], float | None],
    look: dict[str, tuple[str, str]],
) -> None:
    #   score │            ┌──────●  parcel @256
    #         │      ┌─────●         parcel @64
    #         │  ────●      ○        the front is a step; a point below it is beaten
    #         └────────────────────
    #                  cost
    #
    # A mean over some of the benchmarks would move a point, so one that lacks a cost is left out.
    at: dict[tuple[str, int], tuple[float, float]] = {}
    for key, cells in points.items():
        costs = [value for cell in cells if (value := cost(cell)) is not None]
        if len(costs) == len(cells):
            at[key] = statistics.mean(costs), statistics.mean(map(_mean_of_cell, cells))
    edge = pareto_front([*at.values()])
    axes.step(
        *zip(*edge, strict=True) if edge else ((), ()),
        where="post",
        color=FRONT_COLOR,
        label="front",
    )
    for method in dict.fromkeys(method for method, _ in at):
        curve = sorted(point for (name, _), point in at.items() if name == method)
        color, marker = look.get(method, (REFERENCE_COLOR, "h"))
        axes.plot(
            *zip(*curve, strict=True), color=color, marker=marker, label=method, linewidth=1.4
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x >= 1000 else f"{x:.3g}")
    axes.minorticks_off()
    if len(ticks := {x for x, _ in at.values()}) <= _MAX_TICKS:
        axes.set_xticks(sorted(ticks))
