"""Facts in the header of an encoded picture, read without decoding it."""

import io
import warnings
from typing import NamedTuple

from PIL import Image

from pipelines.images.square import FORMATS

_PNG_BITS = 24
"""Position of the bits of a sample in a PNG [bytes]; Pillow's modes do not tell 8 from 16."""

_TIFF_BITS = 258
"""TIFF's tag of the bits of each sample."""


class PictureHeader(NamedTuple):
    """Facts in a picture's header.

    Attributes:
      mode: Pillow's mode, such as "RGB", "CMYK", "P" (a palette) or "I;16".
      width: width as stored, before it is turned upright [pixels].
      height: height as stored [pixels].
      has_alpha: whether some of its pixels may be transparent.
      bits: bits of a sample in the file.
    """

    mode: str
    width: int
    height: int
    has_alpha: bool
    bits: int


def read_header(data: bytes) -> PictureHeader | None:
    """Returns the facts in a picture's header; None if it has none that can be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of a size that preparing refuses in its own words.
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                has_alpha = "A" in image.getbands() or "transparency" in image.info
                return PictureHeader(
                    image.mode, *image.size, has_alpha, _picture_bit_depth(image, data)
                )
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None  # Decoding says why.


def _picture_bit_depth(image: Image.Image, data: bytes) -> int:
    if image.format == "PNG":
        return data[_PNG_BITS]
    if image.format == "TIFF":
        return int(image.tag_v2.get(_TIFF_BITS, (8,))[0])  # type: ignore[attr-defined]
    return 8
