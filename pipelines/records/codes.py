"""Boxes and masks as text: `<loc0000>` to `<loc1023>`, `<seg000>` to `<seg127>`.

    <loc0102><loc0409><loc0511><loc1023>  <seg004><seg127> ... 16 of them  red circle
     ymin     xmin     ymax     xmax       the mask inside that box

A side at 0.5 of the height is `<loc0512>`: round(0.5 * 1023). All code that writes or reads these
tokens (preparation, tokenizer, mask codec, metrics, drawings) uses this module.

Source: big_vision `pp/proj/paligemma/ops.py` (the tokens), `segmentation.py` (their meaning).
"""

import re
from collections.abc import Iterable, Sequence

NUM_LOC = 1024
LOC_SCALE = NUM_LOC - 1
"""Number of the token at the far edge: a coordinate of 1.0."""

NUM_SEG = 128
SEG_PER_MASK = 16

EXTRA_TOKENS = tuple(f"<loc{i:04d}>" for i in range(NUM_LOC)) + tuple(
    f"<seg{i:03d}>" for i in range(NUM_SEG)
)
"""All location and mask tokens, in the order in which they follow a vocabulary's own pieces."""

TOKEN = r"<loc\d{4}>|<seg\d{3}>"
BOX = r"(?:<loc\d{4}>){4}"
MASK = rf"(?:<seg\d{{3}}>){{{SEG_PER_MASK}}}"
"""Patterns of one token, one box, one mask; they do not check the range: `<loc9999>` matches."""

_DIGITS = re.compile(r"\d+")

Box = tuple[float, float, float, float]
"""ymin, xmin, ymax, xmax [fractions of height and width]."""


def format_box(box: Sequence[float]) -> str:
    """Returns the four tokens of a box; a coordinate is rounded to the nearest of 1024 values."""
    ymin, xmin, ymax, xmax = (f"<loc{round(side * LOC_SCALE):04d}>" for side in box)
    return ymin + xmin + ymax + xmax


def parse_box(text: str) -> Box:
    """Returns the box of a text that `BOX` matches."""
    ymin, xmin, ymax, xmax = (number / LOC_SCALE for number in numbers(text))
    return ymin, xmin, ymax, xmax


def format_mask(codes: Iterable[int]) -> str:
    """Returns the tokens of a mask's code numbers."""
    return "".join(f"<seg{code:03d}>" for code in codes)


def numbers(text: str) -> list[int]:
    """Returns the number of each token of a box or a mask."""
    return [int(digits) for digits in _DIGITS.findall(text)]
