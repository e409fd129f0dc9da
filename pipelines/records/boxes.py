"""Finds boxes and masks in a text, and paints them on the picture that the text is about."""

import re

from PIL import Image, ImageDraw

from pipelines.records.codes import BOX, MASK, parse_box

OBJECT = re.compile(f"({BOX})({MASK})?")
"""An object in a text: group 1 is its box, group 2 its mask, if there is one."""

BOX_COLORS = ((230, 60, 40), (40, 140, 230), (40, 180, 80), (240, 170, 30), (170, 80, 210))

Box = tuple[int, int, int, int]
"""x0, y0, x1, y1 [pixels]."""


def color_of(number: int) -> tuple[int, int, int]:
    """Returns the color of the object with a number."""
    return BOX_COLORS[number % len(BOX_COLORS)]


def pixel_box(tokens: str, size: tuple[int, int]) -> Box:
    """Returns the box of four location tokens in an image of a size (width, height)."""
    width, height = size
    ymin, xmin, ymax, xmax = parse_box(tokens)
    return int(xmin * width), int(ymin * height), int(xmax * width), int(ymax * height)


def paint_box(image: Image.Image, box: Box, number: int) -> None:
    """Draws a box on the image, unless the box is empty."""
    x0, y0, x1, y1 = box
    if y1 > y0 and x1 > x0:
        width = max(1, min(image.size) // 100)
        frame = (x0, y0, x1 - 1, y1 - 1)
        ImageDraw.Draw(image).rectangle(frame, outline=color_of(number), width=width)


def paint_mask(image: Image.Image, mask: Image.Image, at: tuple[int, int], number: int) -> None:
    """Paints a half-transparent color on the image inside the mask (mode "L", 255 inside)."""
    # Below 128 nothing, from 128 on half: what is under the mask stays visible.
    veil = mask.point([0] * 128 + [128] * 128)
    image.paste(Image.new("RGB", mask.size, color_of(number)), at, veil)
