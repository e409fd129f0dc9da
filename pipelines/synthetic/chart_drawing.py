"""Draws charts with axes, numbers and a title, as a plotting library would."""

import math

import numpy as np
from PIL import Image, ImageDraw

from pipelines.synthetic.charts import Chart
from pipelines.synthetic.drawing import COLORS, font

_INK = (60, 60, 66)
_GRID = (222, 222, 226)
_AXIS_TOP = 90
_BAR_SHARE = 0.72
_LABEL_SIZE = 12
_TITLE_SIZE = 18


def draw_chart(chart: Chart) -> np.ndarray:
    """Returns the chart as an RGB image (H, W, 3)."""
    width, height = chart.size
    image = Image.new("RGB", chart.size, (255, 255, 255))
    draw = ImageDraw.Draw(image)
    draw.text((width / 2, 8), chart.title, fill=_INK, font=font(_TITLE_SIZE), anchor="ma")
    if chart.kind == "pie":
        _draw_pie(draw, chart)
        return np.asarray(image)
    frame = (34, 36, width - 10, height - 26)
    _draw_axes(draw, frame)
    if chart.kind == "bar":
        _draw_bars(draw, chart, frame)
    else:
        _draw_lines(draw, chart, frame)
    return np.asarray(image)


def _draw_axes(draw: ImageDraw.ImageDraw, frame: tuple[int, int, int, int]) -> None:
    left, _, right, bottom = frame
    for value in range(0, _AXIS_TOP, 20):
        y = _height_of(value, frame)
        draw.line((left, y, right, y), fill=_GRID if value else _INK)
        draw.text((left - 6, y), str(value), fill=_INK, font=font(_LABEL_SIZE), anchor="rm")
    draw.line((left, frame[1], left, bottom), fill=_INK)


def _draw_bars(draw: ImageDraw.ImageDraw, chart: Chart, frame: tuple[int, int, int, int]) -> None:
    left, _, right, bottom = frame
    slot = (right - left) / len(chart.values)
    for number, (color, value) in enumerate(zip(chart.colors, chart.values, strict=True)):
        middle = left + (number + 0.5) * slot
        half = slot * _BAR_SHARE / 2
        top = _height_of(value, frame)
        box = (round(middle - half), top, round(middle + half), bottom - 1)
        draw.rectangle(box, fill=COLORS[color])
        _draw_year(draw, chart, number, middle, bottom)


def _draw_lines(draw: ImageDraw.ImageDraw, chart: Chart, frame: tuple[int, int, int, int]) -> None:
    left, _, right, bottom = frame
    slot = (right - left) / len(chart.points[0])
    for color, line in zip(chart.colors, chart.points, strict=True):
        dots = [
            (left + (number + 0.5) * slot, _height_of(value, frame))
            for number, value in enumerate(line)
        ]
        draw.line(dots, fill=COLORS[color], width=8, joint="curve")
        for x, y in dots:
            draw.ellipse((x - 7, y - 7, x + 7, y + 7), fill=COLORS[color])
    for number in range(len(chart.points[0])):
        _draw_year(draw, chart, number, left + (number + 0.5) * slot, bottom)


def _draw_year(draw: ImageDraw.ImageDraw, chart: Chart, number: int, x: float, bottom: int) -> None:
    year = str(chart.first_year + number)
    draw.text((x, bottom + 6), year, fill=_INK, font=font(_LABEL_SIZE), anchor="ma")


def _draw_pie(draw: ImageDraw.ImageDraw, chart: Chart) -> None:
    width, height = chart.size
    radius = min(width, height - 40) // 2 - 8
    x, y = width // 2, 36 + (height - 40) // 2
    # Clockwise from the top: Pillow counts angles clockwise, from the right.
    angle = -90.0
    for color, share in zip(chart.colors, chart.values, strict=True):
        sweep = 360 * share / 100
        circle = (x - radius, y - radius, x + radius, y + radius)
        draw.pieslice(circle, angle, angle + sweep, fill=COLORS[color], outline=(255, 255, 255))
        middle = math.radians(angle + sweep / 2)
        spot = (x + 0.66 * radius * math.cos(middle), y + 0.66 * radius * math.sin(middle))
        draw.text(spot, f"{share}%", fill=(20, 20, 24), font=font(_LABEL_SIZE + 2), anchor="mm")
        angle += sweep


def _height_of(value: int, frame: tuple[int, int, int, int]) -> int:
    _, top, _, bottom = frame
    # Pixels count downwards, values upwards; `_AXIS_TOP` is at the top of the frame.
    return round(bottom - (bottom - top) * value / _AXIS_TOP)
