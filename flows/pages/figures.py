"""Figures of a run, for its page, a paper or a talk."""

import collections
import dataclasses
import itertools
import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from flows.lookup.results import labelled_report
from flows.lookup.runs import results_artifact
from flows.pages.chart import LossReader
from flows.pages.compare_page import trainings_by_sort
from flows.pages.curves import CurvePoints
from flows.report.cells import Aggregate, Cell, Report, Section
from flows.report.pareto import draw_pareto
from flows.report.plot import (
    DPI,
    MAX_COLUMNS,
    PANEL_INCHES,
    REFERENCE_COLOR,
    draw_legend,
    draw_scores,
    figure_bytes,
    looks,
    plot_style,
)
from flows.steps.labels import labels_of
from infra.errors import ConfigError
from infra.store.store import Store

_DASHES = ("-", "--", ":", "-.")
"""Lines that tell the seeds of a method apart."""
_DRAWN = threading.Lock()
"""Held while Matplotlib draws: its settings are one for all threads."""


def write_figure(
    store: Store,
    run: str,
    form: str,
    out: Path,
    figure: str = "scores",
    *,
    mixed: bool = False,
    labels: Path | None = None,
) -> None:
    """Writes a figure of a run into a file.

    Args:
      store: the store that holds the runs.
      run: a study's name, or the beginning of a run's full name.
      form: one of `plot.FORMS`; SVG and PDF are drawn in vectors.
      out: the file.
      figure: one of `FIGURES`.
      mixed: as for `show_results`.
      labels: as for `show_results`.

    Raises:
      ConfigError: if the request is wrong, or the file is there or cannot be written.
    """
    drawn = figure_of_run(store, run, form, figure, mixed=mixed, labels=labels)
    try:
        with out.open("xb") as file:
            file.write(drawn)
    except FileExistsError:
        raise ConfigError(f"--out must be a new file, got {out}; name another one.") from None
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror or error}.") from None


def figure_of_run(
    store: Store, run: str, form: str, figure: str, *, mixed: bool, labels: Path | None = None
) -> bytes:
    """Returns a figure of a run as a file; the arguments are those of `write_figure`."""
    if figure not in FIGURES:
        raise ConfigError(f"--figure must be one of {', '.join(FIGURES)}, got {figure!r}.")
    report = labelled_report(store, results_artifact(store, run), labels, mixed=mixed)
    return draw_figure(store, report, figure, form)


def draw_figure(store: Store, report: Report, figure: str, form: str) -> bytes:
    """Returns a figure, one of `FIGURES`, as a file, one of `plot.FORMS`.

    Raises:
      ConfigError: if the run has nothing to draw there.
    """
    with _DRAWN:
        return FIGURES[figure](store, report, form)


def _draw_retention(_: Store, report: Report, form: str) -> bytes:
    """Draws retention by budget: a panel per mean over benchmarks, then one per benchmark."""
    means: dict[tuple[object, ...], dict[tuple[str, int], Aggregate]] = {}
    for entry in report.aggregates:
        of_group = means.setdefault((entry.name, entry.view), {})
        of_group[entry.method, entry.budget] = entry
    sections = [section for section in report.sections if section.has_reference]
    panels = [
        _retention_panel(section, f"{entry.name}, {entry.expected} benchmarks", entries)
        for entries in means.values()
        for entry in [*entries.values()][:1]
        for section in [s for s in sections if s.view == entry.view][:1]
    ]
    for section in sections:
        cells = {(cell.method, cell.budget): cell for cell in section.cells}
        panels.append(_retention_panel(section, section.benchmark, cells))
    if not panels:
        raise ConfigError("--figure retention needs a run with vanilla, which it is measured by.")
    return draw_scores(dataclasses.replace(report, sections=tuple(panels)), form)


def _retention_panel(
    section: Section, title: str, entries: Mapping[tuple[str, int], Cell | Aggregate]
) -> Section:
    """Returns a benchmark, or a mean of its view, with retentions in place of its scores."""
    cells = []
    for cell in section.cells:
        of = entries.get((cell.method, cell.budget))
        ends = (of.retention, of.retention_low, of.retention_high) if of else (None,) * 3
        cells.append(
            dataclasses.replace(cell, **dict(zip(("mean", "low", "high"), ends, strict=True)))
        )
    metric = f"retention [% of {section.reference}]"
    return dataclasses.replace(
        section, benchmark=title, metric=metric, chance=None, cells=tuple(cells)
    )


def _draw_curves(store: Store, report: Report, form: str) -> bytes:
    """Draws loss by step: a panel per benchmark's transfers, then one per stage before them."""
    # Benchmarks share the stages before their transfers: each training is drawn once.
    losses = LossReader(store)
    panels: dict[tuple[object, ...], dict[str, tuple[str, CurvePoints]]] = {}
    for section in report.sections:
        for trainings in trainings_by_sort(store, section).values():
            for group, made in trainings:
                if points := losses.points(made.key):
                    of = labels_of(made)
                    title = (of.action, of.benchmark, of.pixels, of.backbone)
                    method = of.method if of.method in section.methods else section.methods[group]
                    panels.setdefault(title, {})[made.key] = method, points
    if not panels:
        raise ConfigError("--figure curves needs a run whose trainings logged a loss.")
    with plot_style():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        columns = min(MAX_COLUMNS, len(panels))
        rows = math.ceil(len(panels) / columns)
        size = (PANEL_INCHES[0] * max(columns, 1.5), PANEL_INCHES[1] * rows + 0.45)
        figure = Figure(figsize=size, dpi=DPI, layout=ConstrainedLayoutEngine(hspace=0.08))
        FigureCanvasAgg(figure)
        colors = looks(report)
        order = sorted(panels, key=lambda title: not title[1])  # Those of a benchmark first.
        for axes, title in itertools.zip_longest(
            figure.subplots(rows, columns, squeeze=False).flat, order
        ):
            if title is None:
                axes.set_axis_off()
                continue
            drawn = collections.Counter[str]()
            for method, points in panels[title].values():
                axes.plot(
                    *zip(*points, strict=True),
                    color=colors.get(method, (REFERENCE_COLOR,))[0],
                    linestyle=_DASHES[drawn[method] % len(_DASHES)],
                    linewidth=1.2,
                    label=method,
                )
                drawn[method] += 1
            axes.set_title(" ".join(str(part) for part in title if part))
            axes.set_xlabel("step")
            axes.set_ylabel("loss")
        draw_legend(figure, columns)
        return figure_bytes(figure, form)


FIGURES: Mapping[str, Callable[[Store, Report, str], bytes]] = {
    "scores": lambda _, report, form: draw_scores(report, form),
    "pareto": lambda _, report, form: draw_pareto(report, form),
    "retention": _draw_retention,
    "curves": _draw_curves,
}
"""Name of a figure -> function of the store, the report and the form."""
