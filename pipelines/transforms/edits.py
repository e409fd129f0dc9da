"""Edits that some benchmarks make to their images: turns, labels, frames.

Source: big_vision `datasets/{textvqa,ai2d}` (before resizing) and `pp/proj/paligemma/widgetcap.py`
(after resizing).
"""

import dataclasses

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pipelines.images.square import ImageSpec, encode_image, square_image, square_region
from pipelines.records.schema import BadInput
from pipelines.sources.reading.item import Edit

_LARGEST_FONT = 100
_RED = (255, 0, 0)
_TURNS = {
    1: Image.Transpose.ROTATE_90,
    2: Image.Transpose.ROTATE_180,
    3: Image.Transpose.ROTATE_270,
}


def edit_image(image: Image.Image, spec: ImageSpec, edit: Edit) -> tuple[bytes, tuple[int, int]]:
    """Returns the edited square, encoded, and the width and height of the turned original [pixels].

    Raises:
      BadInput: if the frame lies outside, or see `square_image`.
    """
    image = edit_original(image, edit)
    square, size = square_image(image, spec), image.size
    if edit.frame is not None and spec.aspect == "pad":
        # In fractions of the padded picture's height, which is its width, too.
        left, top, right, _ = square_region(size, spec)
        side = right - left
        x0, y0, x1, y1 = (value * image.height for value in edit.frame)
        moved = (x0 - left, y0 - top, x1 - left, y1 - top)
        frame = tuple(value / side for value in moved)
        edit, size = dataclasses.replace(edit, frame=frame), (side, side)
    return encode_image(edit_stored(square, edit, size), spec.encoding), image.size


def edit_original(image: Image.Image, edit: Edit) -> Image.Image:
    """Returns the image turned and labelled, at its original size.

    Labels use Pillow's built-in font (Aileron), not DM Sans as in big_vision: it needs no file and
    is the same everywhere.
    """
    # Turned first, so that labels are placed on the upright picture.
    if turns := edit.quarter_turns % 4:
        image = image.transpose(_TURNS[turns])
    if edit.labels:
        image = image.copy()
        draw = ImageDraw.Draw(image)
        for x0, y0, x1, y1, text in edit.labels:
            _write_label(draw, (min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)), text)
    return image


def edit_stored(image: Image.Image, edit: Edit, original: tuple[int, int]) -> Image.Image:
    """Returns the square with its frame, one red pixel wide; sides outside are not drawn.

    Source: TensorFlow `draw_bounding_box_op.cc`: the corner of fraction f is pixel trunc(f (n-1)),
    in float32.

    Args:
      image: the square.
      edit: edit whose frame is drawn.
      original: width and height of what the square shows [pixels].

    Raises:
      BadInput: if the frame is outside of the image.
    """
    if edit.frame is None:
        return image
    # x is in fractions of the height: times height / width it is a fraction of the width.
    shape = original[1] / original[0]
    (x0, x1), (y0, y1) = (edit.frame[0] * shape, edit.frame[2] * shape), edit.frame[1::2]
    if x1 <= x0 or y1 <= y0 or x1 <= 0 or y1 <= 0 or x0 >= 1 or y0 >= 1:
        raise BadInput(f"frame {[round(v, 3) for v in edit.frame]} shows nothing of the image")
    pixels = np.array(image)
    height, width = pixels.shape[:2]
    left, right = (_frame_pixel(x, width) for x in (x0, x1))
    top, bottom = (_frame_pixel(y, height) for y in (y0, y1))
    # Sides outside of the picture are left out, while those inside are drawn to its border.
    rows = slice(max(top, 0), min(bottom, height - 1) + 1)
    columns = slice(max(left, 0), min(right, width - 1) + 1)
    for row in (top, bottom):
        if 0 <= row < height:
            pixels[row, columns] = _RED
    for column in (left, right):
        if 0 <= column < width:
            pixels[rows, column] = _RED
    return Image.fromarray(pixels)


def _frame_pixel(fraction: float, side: int) -> int:
    return int(np.float32(fraction) * np.float32(side - 1))


def _write_label(
    draw: ImageDraw.ImageDraw, box: tuple[float, float, float, float], text: str
) -> None:
    """Draws a white rectangle with the text, centred, in the largest font (up to 100) that fits."""
    draw.rectangle(box, fill=(255, 255, 255))
    width, height = box[2] - box[0], box[3] - box[1]
    # Bisection over font sizes: `low` always fits, or is 1.
    low, high = 1, _LARGEST_FONT
    while low < high:
        middle = (low + high + 1) // 2
        left, top, right, bottom = ImageFont.load_default(middle).getbbox(text)
        if right - left <= width and bottom - top <= height:
            low = middle
        else:
            high = middle - 1
    font = ImageFont.load_default(low)
    left, top, right, bottom = font.getbbox(text)
    x = box[0] + (width - (right - left)) / 2 - left
    draw.text((x, box[1] - top), text, fill=(0, 0, 0), font=font)
