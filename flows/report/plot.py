"""Draws score against budget, one panel per benchmark."""

import io
import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flows.report.cells import Cell, Report, Section
from infra.plotting import import_matplotlib

# Okabe and Ito's colours, which people with any colour blindness can tell apart; black is kept for
# the reference. Markers tell methods apart in prints without colour. 7 and 8 have no common factor,
# so the first 56 methods all look different.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8C6D31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
REFERENCE_COLOR = "#1A1A1A"
CHANCE_COLOR = "#767676"
FORMS: Mapping[str, Mapping[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Forms of a figure, and what is left out of their metadata."""

PANEL_INCHES = (3.5, 2.9)
MAX_COLUMNS = 4
DPI = 160
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelcolor": "#333333",
    "axes.edgecolor": "#999999",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "parcel",  # Ids in an SVG are drawn at random without it.
    "pdf.fonttype": 42,  # TrueType, which publishers ask for.
}


def draw_scores(report: Report, form: str = "png") -> bytes:
    """Returns a figure of mean scores with their 95 % intervals against the budget.

    Chance is a dotted line. The reference at its full budget is a dashed line with its interval
    shaded. Each other method is a line over its budgets; a missing cell leaves a gap.

    Args:
      report: a report of at least one benchmark.
      form: one of `FORMS`.
    """
    with plot_style():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        # A panel per benchmark, row by row; panels that are left over in the last row stay blank.
        columns = min(MAX_COLUMNS, len(report.sections))
        rows = math.ceil(len(report.sections) / columns)
        size = (PANEL_INCHES[0] * max(columns, 1.5), PANEL_INCHES[1] * rows + 0.45)
        figure = Figure(figsize=size, dpi=DPI, layout=ConstrainedLayoutEngine(hspace=0.08))
        FigureCanvasAgg(figure)
        colors = looks(report)
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for axes, section in itertools.zip_longest(panels, report.sections):
            if section is None:
                axes.set_axis_off()
            else:
                _draw_panel(axes, section, colors)
        draw_legend(figure, columns)
        figure.supxlabel(
            "bars and band: 95 % intervals; methods are compared by paired differences",
            fontsize=8,
            color=CHANCE_COLOR,
        )
        return figure_bytes(figure, form)


def figure_bytes(figure: Any, form: str) -> bytes:
    """Returns a figure as a file, one of `FORMS`; the same figure gives the same bytes."""
    # No version of Matplotlib in it, and no time.
    file = io.BytesIO()
    figure.savefig(file, format=form, metadata=FORMS[form])
    return file.getvalue()


@contextmanager
def plot_style() -> Iterator[None]:
    """Sets our style over Matplotlib's defaults, ignoring the user's own settings."""
    matplotlib = import_matplotlib()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams
        settings.update(STYLE)
        yield


def looks(report: Report) -> dict[str, tuple[str, str]]:
    """Returns method -> (colour, marker) in the order of the plan, without the references."""
    references = {s.reference for s in report.sections}
    methods = dict.fromkeys(m for s in report.sections for m in s.methods if m not in references)
    looks = zip(itertools.cycle(COLORS), itertools.cycle(MARKERS), strict=False)
    return dict(zip(methods, looks, strict=False))


def _draw_panel(axes: Any, section: Section, colors: dict[str, tuple[str, str]]) -> None:
    # Levels first, as lines all across: chance, and the reference. Then a line per method, over
    # budgets on a logarithmic axis, where 16, 64 and 256 are equally far apart.
    budgets = sorted(section.budgets)
    _draw_levels(axes, section)
    drawn = [m for m in section.methods if m != section.reference]
    for i, method in enumerate(drawn):
        cells = [section.cell(method, b) for b in budgets if section.cell(method, b).expected]
        shift = 2 ** (0.09 * (i - (len(drawn) - 1) / 2))  # Keeps error bars apart.
        color, marker = colors[method]
        _draw_line(axes, cells, shift, color=color, marker=marker, label=method)
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets, [str(b) for b in budgets])
    axes.minorticks_off()
    axes.set_xlim(budgets[0] / 2**0.45, budgets[-1] * 2**0.45)
    # Error bars may reach below 0, where no score is: the axis ends there, unless a mean does, too.
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0) if _lowest_mean_or_chance(section) >= 0 else low, high)
    pixels = f", {section.resolution} px" if section.resolution else ""
    title = f"{section.title}{pixels}"
    axes.set_title(f"{section.backbone}\n{title}" if section.backbone else title)
    axes.set_xlabel("budget [tokens]")
    axes.set_ylabel(section.metric.replace("_", " ") or "score")


def _draw_levels(axes: Any, section: Section) -> None:
    if section.chance is not None:
        look = {"color": CHANCE_COLOR, "linestyle": (0, (1, 1.6)), "linewidth": 1.5}
        axes.axhline(section.chance, label="chance", zorder=1.5, **look)
    if section.reference not in section.methods:
        return
    # The reference without an interval is a line without a band.
    full = section.cell(section.reference, section.full_budget)
    if full.mean is not None:
        label = f"{section.reference} (all tokens)"
        look = {"color": REFERENCE_COLOR, "linestyle": (0, (5, 2.5)), "linewidth": 1.3}
        axes.axhline(full.mean, label=label, zorder=1.6, **look)
        if full.low is not None:
            axes.axhspan(full.low, full.high, color="#000000", alpha=0.07, lw=0)


def _draw_line(axes: Any, cells: list[Cell], shift: float, **look: str) -> None:
    # NaN breaks the line: a missing score leaves a gap, and is not bridged.
    axes.errorbar(
        [c.budget * shift for c in cells],
        [math.nan if c.mean is None else c.mean for c in cells],
        yerr=list(zip(*map(_ends_below_and_above, cells), strict=True)),
        linewidth=1.8,
        markersize=5.5,
        markeredgecolor="white",
        markeredgewidth=0.8,
        elinewidth=1.1,
        capsize=2.5,
        zorder=3,
        **look,
    )


def _ends_below_and_above(cell: Cell) -> tuple[float, float]:
    if cell.mean is None or cell.low is None or cell.high is None:
        return 0.0, 0.0
    return max(cell.mean - cell.low, 0.0), max(cell.high - cell.mean, 0.0)


def _lowest_mean_or_chance(section: Section) -> float:
    means = [c.mean for c in section.cells if c.mean is not None]
    return min([*means, section.chance or 0.0])


def draw_legend(figure: Any, columns: int) -> None:
    """Puts one legend for all panels above them: methods, then the reference, then chance."""
    # Panels share names: the first handle of a name stands for all.
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    names = sorted(entries, key=lambda n: (n in ("chance", "front"), n.endswith("(all tokens)")))
    if names:
        figure.legend(
            [entries[n] for n in names],
            names,
            loc="outside upper center",
            ncols=min(len(names), max(3, 2 * columns)),
            handlelength=2.4,
            columnspacing=1.8,
        )
