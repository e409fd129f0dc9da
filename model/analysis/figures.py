"""The two figures of the paper's spectral analysis. Matplotlib is imported when they are drawn."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from infra.plotting import import_matplotlib
from model.analysis.measure import FEATURES, POOLED, QUERIES, Curve

# Okabe and Ito's colours, which people with any kind of colour blindness can distinguish; dashes
# and markers help in prints without colour.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_FEATURES_COLOR = "#767676"
_MARKERS = {FEATURES: "", POOLED: "o", QUERIES: "s"}
_DASHES = {FEATURES: ":", POOLED: "-", QUERIES: "--"}
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#999999",
    "axes.labelcolor": "#333333",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 3.2,
}


@dataclasses.dataclass(frozen=True)
class LabelledCurves:
    """A checkpoint's curves under the name it has in the figures."""

    label: str
    curves: Sequence[Curve]


def draw_concentration(checkpoints: Sequence[LabelledCurves], num_images: int, path: Path) -> None:
    """Writes the PNG of cumulative spectral concentration: features and pooled tokens.

    Args:
      checkpoints: checkpoints to compare.
      num_images: number of images behind the curves, for the title.
      path: path of the PNG.
    """
    with _spectral_figure_axes(path) as axes:
        for entry, curve, style in _curve_styles(checkpoints, (FEATURES, POOLED)):
            axes.plot(curve.radii, curve.cumulative, label=_curve_label(entry, curve), **style)
        axes.set_title(f"Cumulative spectral concentration, {_image_count_text(num_images)}")
        axes.set_ylabel("cumulative power up to r [fraction]")
        axes.set_ylim(0, 1.03)


def draw_profiles(checkpoints: Sequence[LabelledCurves], num_images: int, path: Path) -> None:
    """Writes the PNG of normalized radial mean power: features, pooled tokens and queries.

    Args:
      checkpoints: checkpoints to compare.
      num_images: number of images behind the curves, for the title.
      path: path of the PNG.
    """
    with _spectral_figure_axes(path) as axes:
        for entry, curve, style in _curve_styles(checkpoints, (FEATURES, POOLED, QUERIES)):
            axes.plot(curve.radii, curve.shares, label=_curve_label(entry, curve), **style)
        axes.set_title(f"Normalized radial mean power, {_image_count_text(num_images)}")
        axes.set_ylabel("normalized mean power at r [fraction]")
        axes.set_yscale("log")


@contextlib.contextmanager
def _spectral_figure_axes(path: Path) -> Iterator[Any]:
    matplotlib = import_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context(_STYLE):
        # Not by pyplot, which keeps every figure in a global list.
        figure = Figure(figsize=(6.8, 4.6), dpi=160, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        axes.set_xlabel("radial frequency r [cycles per image side]")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        yield axes
        # Below the axes, since curves fill all of a plot; in two columns from four curves on.
        columns = 1 if len(axes.lines) < 4 else 2
        figure.legend(loc="outside lower center", ncols=columns)
        # Without the name and release of Matplotlib, so that equal curves give equal files.
        figure.savefig(path, format="png", metadata={"Software": None})


def _curve_styles(
    checkpoints: Sequence[LabelledCurves], kinds: Sequence[str]
) -> Iterator[tuple[LabelledCurves, Curve, dict[str, Any]]]:
    """Yields the lines of a plot: a colour per checkpoint, dashes and markers by quantity."""
    # A colour says which checkpoint, dashes and markers which quantity. Of a single checkpoint, the
    # features are grey: they are what its other curves are compared with.
    for i, entry in enumerate(checkpoints):
        for curve in entry.curves:
            if curve.what in kinds:
                plain = curve.what == FEATURES and len(checkpoints) == 1
                yield (
                    entry,
                    curve,
                    {
                        "color": _FEATURES_COLOR if plain else _COLORS[i % len(_COLORS)],
                        "linestyle": _DASHES[curve.what],
                        "marker": _MARKERS[curve.what],
                        "markersize": 4.5,
                        "linewidth": 1.7,
                    },
                )


def _curve_label(entry: LabelledCurves, curve: Curve) -> str:
    grid = f"{curve.grid}×{curve.grid}"
    if curve.what == FEATURES:
        return f"{entry.label}: vision features, {grid}"
    if curve.what == POOLED:
        return f"{entry.label}: pooled tokens, {grid} of budget {curve.budget}"
    return f"{entry.label}: features its queries see, budget {curve.budget}"


def _image_count_text(num_images: int) -> str:
    return f"{num_images} image{'s' if num_images > 1 else ''}"
