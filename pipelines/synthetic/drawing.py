"""The colours and shapes of the pictures, and functions that paint them."""

import functools
import math

import numpy as np
from PIL import Image, ImageDraw, ImageFont

COLORS = {
    "red": (222, 28, 36),
    "green": (24, 150, 56),
    "blue": (32, 64, 222),
    "yellow": (250, 214, 20),
    "purple": (132, 36, 172),
    "orange": (250, 128, 12),
    "cyan": (30, 206, 224),
    "pink": (252, 128, 188),
}
SHAPES = ("circle", "square", "triangle", "cross", "ring")

_SUPERSAMPLING = 8
_CIRCLE_VERTICES = 48
_RING_HOLE = 0.5
_CROSS_ARM = 0.34


def outline(shape: str, size: int) -> list[tuple[float, float]]:
    """Returns the vertices of a shape's outer edge inside a square of `size` [pixels].

    A ring's outer edge is a circle; a polygon cannot describe its hole.
    """
    if shape == "square":
        unit = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
    elif shape == "triangle":  # blunt by three pixels, so that its top row is really painted
        unit = [(0.5 - 1.5 / size, 0.0), (0.5 + 1.5 / size, 0.0), (1.0, 1.0), (0.0, 1.0)]
    elif shape == "cross":
        near, far = 0.5 - _CROSS_ARM / 2, 0.5 + _CROSS_ARM / 2
        unit = [(near, 0.0), (far, 0.0), (far, near), (1.0, near), (1.0, far), (far, far)]
        unit += [(far, 1.0), (near, 1.0), (near, far), (0.0, far), (0.0, near), (near, near)]
    else:
        angles = [2 * math.pi * i / _CIRCLE_VERTICES for i in range(_CIRCLE_VERTICES)]
        unit = [(0.5 + 0.5 * math.cos(angle), 0.5 + 0.5 * math.sin(angle)) for angle in angles]
    return [(x * size, y * size) for x, y in unit]


@functools.cache
def coverage(shape: str, size: int) -> np.ndarray:
    """Returns the share of each pixel that the shape covers, (size, size) in 0..1."""
    if shape not in SHAPES:
        raise ValueError(f"shape must be one of {', '.join(SHAPES)}, got {shape!r}.")
    # Drawn eight times as large and averaged: a pixel at the edge becomes the share that is
    # covered.
    large = size * _SUPERSAMPLING
    image = Image.new("L", (large, large), 0)
    draw = ImageDraw.Draw(image)
    if shape in ("circle", "ring"):
        draw.ellipse((0, 0, large - 1, large - 1), fill=255)
    else:
        scale = _SUPERSAMPLING
        # Half a pixel back: Pillow counts from the centres of pixels, the outline from their
        # corners.
        vertices = [(x * scale - 0.5, y * scale - 0.5) for x, y in outline(shape, size)]
        draw.polygon(vertices, fill=255)
    # The hole is drawn over the disc; no polygon could have one.
    if shape == "ring":
        margin = large * (1 - _RING_HOLE) / 2
        draw.ellipse((margin, margin, large - 1 - margin, large - 1 - margin), fill=0)
    small = image.resize((size, size), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float32) / 255


def paint(image: np.ndarray, shape: str, color: str, left: int, top: int, size: int) -> None:
    """Paints a shape into `image` (H, W, 3) in place, clipped to the image."""
    height, width = image.shape[:2]
    x0, y0, x1, y1 = max(left, 0), max(top, 0), min(left + size, width), min(top + size, height)
    if x0 >= x1 or y0 >= y1:
        return
    alpha = coverage(shape, size)[y0 - top : y1 - top, x0 - left : x1 - left, None]
    patch = image[y0:y1, x0:x1].astype(np.float32)
    blended = patch + alpha * (np.array(COLORS[color], dtype=np.float32) - patch)
    image[y0:y1, x0:x1] = np.rint(blended).astype(np.uint8)


def mask_of(shape: str, left: int, top: int, size: int, *, height: int, width: int) -> np.ndarray:
    """Returns the mask (H, W) of the pixels that a shape covers by at least half."""
    mask = np.zeros((height, width), dtype=bool)
    mask[top : top + size, left : left + size] = coverage(shape, size) >= 0.5
    return mask


def paper(rng: np.random.Generator, *, height: int, width: int) -> np.ndarray:
    """Returns a light background (H, W, 3) with a tint, soft clouds and grain."""
    tint = 226 + rng.integers(0, 18, size=3)
    clouds = rng.integers(0, 24, size=(5, 6, 3), dtype=np.uint8)
    soft = Image.fromarray(clouds).resize((width, height), Image.Resampling.BILINEAR)
    grain = rng.integers(-4, 5, size=(height, width, 1), dtype=np.int16)
    return np.clip(np.asarray(soft, dtype=np.int16) - 12 + tint + grain, 0, 255).astype(np.uint8)


@functools.cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Returns the font that ships with Pillow, which is the same on every machine."""
    return ImageFont.load_default(size=size)
