"""Boxes and masks in a text, and how they are painted on the picture they are about."""

import re
from collections.abc import Sequence

from PIL import Image, ImageDraw

OBJECT = re.compile(r"<loc(\d{4})><loc(\d{4})><loc(\d{4})><loc(\d{4})>((?:<seg\d{3}>){16})?")
"""Location tokens (ymin, xmin, ymax, xmax), and the segmentation tokens of a mask, if any."""

COLORS = ((230, 60, 40), (40, 140, 230), (40, 180, 80), (240, 170, 30), (170, 80, 210))

Box = tuple[int, int, int, int]
"""x0, y0, x1, y1 [pixels]."""


def color_of(number: int) -> tuple[int, int, int]:
    """Returns the color of the object of that number."""
    return COLORS[number % len(COLORS)]


def pixel_box(locations: Sequence[str], size: tuple[int, int]) -> Box:
    """Returns the box of four location tokens' digits in an image of a size (width, height)."""
    width, height = size
    y0, x0, y1, x1 = (
        int(int(loc) / 1023 * side)
        for loc, side in zip(locations, (height, width, height, width), strict=True)
    )
    return x0, y0, x1, y1


def paint_box(image: Image.Image, box: Box, number: int) -> None:
    """Draws a box that is not empty on the image."""
    x0, y0, x1, y1 = box
    if y1 > y0 and x1 > x0:
        width = max(1, min(image.size) // 100)
        frame = (x0, y0, x1 - 1, y1 - 1)
        ImageDraw.Draw(image).rectangle(frame, outline=color_of(number), width=width)


def paint_mask(image: Image.Image, mask: Image.Image, at: tuple[int, int], number: int) -> None:
    """Lays a color over the image where the mask (mode "L", 255 inside) is, half transparent."""
    veil = mask.point([0] * 128 + [128] * 128)
    image.paste(Image.new("RGB", mask.size, color_of(number)), at, veil)
