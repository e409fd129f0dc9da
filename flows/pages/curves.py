"""Draws the values that a training logged by step, as small pictures for its page."""

import functools
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from flows.report.plot import COLORS
from infra.store.store import Artifact
from model.files import METRICS, WATCH

CurvePoints = Sequence[tuple[float, float]]
"""Points (step, value) of a curve."""
Curves = Mapping[str, CurvePoints]
"""Name -> points; the name of a picture's only curve is ""."""
Log = Callable[[str], Sequence[Mapping[str, Any]]]
"""Function from the name of a log of a training to its rows; none if it has no such log."""

_WIDTH, _HEIGHT = 560, 200
"""Size of a picture [pixels]."""
_LEFT, _TOP, _RIGHT, _BOTTOM = 48, 26, 14, 26
"""Margins around the curves [pixels]."""
_FINE = 2
"""Factor by which a picture is drawn larger and then shrunk, for smooth lines."""
_POINTS = 400
"""Largest number of points of a curve; longer curves are averaged down to it."""
_INK, _PALE = "#555555", "#E6E6E6"


def drawn_curves(curves_by_title: Mapping[str, Curves]) -> Mapping[str, Curves]:
    """Returns title -> curves, as they are drawn; a curve needs at least two logged values."""
    drawn = {
        what: {name: thinned(points) for name, points in curves.items() if len(points) > 1}
        for what, curves in curves_by_title.items()
    }
    return {what: curves for what, curves in drawn.items() if curves}


def page_curves(log: Log) -> Mapping[str, Curves]:
    """Returns title -> curves of a training's page.

    They are those of `logged_curves`, norms by part of the parameters, rate, speed and memory.
    """
    rows, logged = log(METRICS), logged_curves(log)

    def by_step(name: str) -> Curves:
        return {"": [(row["step"], row[name]) for row in rows if name in row]}

    norms = [(row["step"], row["gradient_norms"]) for row in rows if "gradient_norms" in row]
    parts = {
        part: [(step, of[part]) for step, of in norms if part in of]
        for part in sorted({part for _, of in norms for part in of})
    }
    return {
        **logged,
        "gradient norm": {"all": logged["gradient norm"][""], **parts},
        "learning rate": by_step("learning_rate"),
        "tokens per second": by_step("tokens_per_second"),
        "peak memory [GB]": by_step("memory_gb"),
    }


def logged_curves(log: Log) -> Mapping[str, Curves]:
    """Returns title -> curves of a training, with every value that it logged.

    Without a value a title has no curve, or one without points.
    """
    trained, watched = log(METRICS), log(WATCH)
    # Picture by picture, curve by curve; a stage that was not watched has the first two only.
    return {
        "loss": {"": [(row["step"], row["loss"]) for row in trained]},
        "gradient norm": {
            "": [(r["step"], r["gradient_norm"]) for r in trained if "gradient_norm" in r]
        },
        "loss on held-out records": _by_budget(watched, "loss"),
        "score of the probe": _by_budget(watched, "score"),
    }


def log_of(artifact: Artifact) -> Log:
    """Returns the logs of a finished training; those whose files are gone have no rows."""
    return functools.partial(_logged_rows, artifact)


def _logged_rows(artifact: Artifact, name: str) -> Sequence[Mapping[str, Any]]:
    if name not in artifact.manifest.files:
        return []
    try:
        # Reads this file alone: in a remote store, `path` would download all parameters.
        text = artifact.files.read(f"{artifact.folder}/{name}")
    except FileNotFoundError:  # gc deleted its files.
        return []
    return [json.loads(line) for line in text.splitlines()]


def _by_budget(rows: Sequence[Mapping[str, Any]], value: str) -> Curves:
    """Returns a curve per budget, with the mean over tasks at each step."""
    found: dict[int, dict[int, list[float]]] = {}
    for row in rows:
        if value in row:
            found.setdefault(row["budget"], {}).setdefault(row["step"], []).append(row[value])
    return {
        f"{budget} tokens": [(step, sum(each) / len(each)) for step, each in by_step.items()]
        for budget, by_step in sorted(found.items())
    }


def thinned(points: CurvePoints) -> CurvePoints:
    """Returns at most `_POINTS` points, each the mean of a run of neighbours."""
    # Rounded up: of 1,000 points three at a time make 334.
    each = -(-len(points) // _POINTS)
    groups = [points[start : start + each] for start in range(0, len(points), each or 1)]
    return [
        (sum(step for step, _ in group) / len(group), sum(value for _, value in group) / len(group))
        for group in groups
    ]


def curves_png(what: str, curves: Curves) -> bytes:
    """Returns a picture of curves as a PNG."""
    png = io.BytesIO()
    _draw_training_curves(what, curves).quantize(16, Image.Quantize.FASTOCTREE).save(png, "PNG")
    return png.getvalue()


def _draw_training_curves(what: str, curves: Curves) -> Image.Image:
    """Returns a picture of curves, labelled with the ranges of steps and values."""
    #   loss                        16 tokens   64 tokens
    #   2.1 ┤──────────────────────────────────────────────
    #   1.4 ┤──────────────────────────────────────────────
    #   0.7 ┤──────────────────────────────────────────────
    #       step 0                                 step 900
    #
    # All curves share both ranges. A range of one value counts as 1, so that nothing divides by 0.
    steps, values = zip(*(point for points in curves.values() for point in points), strict=True)
    (first, last), (low, high) = (min(steps), max(steps)), (min(values), max(values))
    span, length = (high - low) or 1.0, (last - first) or 1.0
    image = Image.new("RGB", (_WIDTH * _FINE, _HEIGHT * _FINE), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(12 * _FINE)
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return x * _FINE, y * _FINE

    # The frame first, so that curves lie on top. y grows downwards: values count up from `bottom`.
    for value in (low, (low + high) / 2, high):
        y = bottom - (value - low) / span * (bottom - _TOP)
        draw.line([at(_LEFT, y), at(right, y)], fill=_PALE, width=_FINE)
        draw.text(at(_LEFT - 6, y), f"{value:.3g}", fill=_INK, font=font, anchor="rm")
    for step, x, anchor in ((first, _LEFT, "la"), (last, right, "ra")):
        draw.text(at(x, bottom + 8), f"step {step:.0f}", fill=_INK, font=font, anchor=anchor)
    draw.text(at(_LEFT, 4), what, fill=_INK, font=font, anchor="la")
    # Names are set from the right edge to the left, the last first, so they read in order.
    place = float(right)
    for number, (name, points) in reversed(list(enumerate(curves.items()))):
        color = COLORS[number % len(COLORS)]
        draw.text(at(place, 4), name, fill=color, font=font, anchor="ra")
        place -= (draw.textlength(name, font) / _FINE) + 12
        line = [
            at(
                _LEFT + (step - first) / length * (right - _LEFT),
                bottom - (value - low) / span * (bottom - _TOP),
            )
            for step, value in points
        ]
        draw.line(line, fill=color, width=2 * _FINE, joint="curve")
    # Drawn twice as large, then averaged down: that is what makes the lines smooth.
    return image.resize((_WIDTH, _HEIGHT), Image.Resampling.BOX)
