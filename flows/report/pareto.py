"""Draws mean scores against what an answer costs, as a PNG: which method to take at which cost."""

import io
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flows.report.cells import Cell, Cost, Report, Section
from flows.report.plot import DPI, PANEL_INCHES, REFERENCE_COLOR, draw_legend, looks, style

COSTS: dict[str, Callable[[Cost], float]] = {
    "soft tokens": lambda cost: cost.tokens,
    "GFLOPs of a prefill": lambda cost: 1000 * cost.tflops,
    "KV cache [MB]": lambda cost: cost.kv_mb,
}
FRONT_COLOR = "#BBBBBB"
_MAX_TICKS = 6
"""Different costs that a panel names; of more of them it names powers of two."""

Points = dict[tuple[str, int], tuple[list[Cost], float]]
"""Method, budget -> its costs, one per benchmark, and its mean score."""


def pareto(report: Report, path: Path) -> None:
    """Writes the PNG of `pareto_png` to a local file."""
    path.write_bytes(pareto_png(report))


def pareto_png(report: Report) -> bytes:
    """Returns a PNG of mean scores against tokens, GFLOPs and key-value cache of a prompt.

    A row of panels per number of images in a prompt; a point is a method at a budget, its score and
    its cost averaged over the benchmarks of the row. Only points with all of these are drawn. The
    grey line is the Pareto front: what nothing beats at the same cost or less.
    """
    groups = _groups(report)
    with style():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        rows = max(len(groups), 1)
        size = (PANEL_INCHES[0] * len(COSTS), PANEL_INCHES[1] * rows + 0.45)
        figure = Figure(figsize=size, dpi=DPI, layout=ConstrainedLayoutEngine(hspace=0.08))
        FigureCanvasAgg(figure)
        panels = figure.subplots(rows, len(COSTS), squeeze=False)
        look = looks(report)
        for row, (num_images, sections) in zip(panels, groups.items(), strict=False):
            points = _points(sections)
            for axes, (name, cost) in zip(row, COSTS.items(), strict=True):
                _draw(axes, points, cost, look)
                axes.set_xlabel(name)
            row[0].set_ylabel("mean score")
            what = "1 image" if num_images == 1 else f"{num_images} images"
            num = len(sections)
            row[0].set_title(f"{what}, {num} benchmark{'s' if num > 1 else ''}")
        draw_legend(figure, len(COSTS))
        png = io.BytesIO()
        figure.savefig(png, format="png", metadata={"Software": None})
        return png.getvalue()


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the (cost, score) points that no other one matches at the same cost or less."""
    kept: list[tuple[float, float]] = []
    for cost, score in sorted(points, key=lambda point: (point[0], -point[1])):
        if not kept or score > kept[-1][1]:
            kept.append((cost, score))
    return kept


def _groups(report: Report) -> dict[int, list[Section]]:
    """Returns number of images -> the benchmarks whose prompts have as many."""
    groups: dict[int, list[Section]] = {}
    for section in report.sections:
        cost = next((c.cost for c in section.cells if c.cost), None)
        if cost is not None:
            groups.setdefault(cost.num_images, []).append(section)
    return groups


def _points(sections: Sequence[Section]) -> Points:
    points: Points = {}
    for method in sections[0].methods:
        for budget in sections[0].budgets:
            cells = [section.cell(method, budget) for section in sections]
            costs = [cell.cost for cell in cells if cell.cost and cell.complete]
            if len(costs) == len(cells):
                points[method, budget] = costs, statistics.mean(map(_mean, cells))
    return points


def _mean(cell: Cell) -> float:
    assert cell.mean is not None
    return cell.mean


def _draw(
    axes: Any, points: Points, cost: Callable[[Cost], float], look: dict[str, tuple[str, str]]
) -> None:
    at = {key: (statistics.mean(map(cost, costs)), mean) for key, (costs, mean) in points.items()}
    edge = front([*at.values()])
    axes.step(*zip(*edge, strict=True) if edge else ((), ()), where="post", color=FRONT_COLOR)
    for method in dict.fromkeys(method for method, _ in at):
        own = sorted(point for (name, _), point in at.items() if name == method)
        color, marker = look.get(method, (REFERENCE_COLOR, "h"))
        axes.plot(*zip(*own, strict=True), color=color, marker=marker, label=method, linewidth=1.4)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x >= 1000 else f"{x:.3g}")
    axes.minorticks_off()
    if len(ticks := {x for x, _ in at.values()}) <= _MAX_TICKS:
        axes.set_xticks(sorted(ticks))
