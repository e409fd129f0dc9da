"""Turns encoded images into encoded squares."""

import dataclasses
import io
import os
import re
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps

from pipelines.records.reasons import POINTER, reason_of
from pipelines.records.schema import BadInput

ENCODINGS = ("jpeg", "png")
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
JPEG_QUALITY = 95
BACKGROUND = "#ffffff"
"""Colour that shows through transparent pixels, unless a config names another."""
ASPECTS = ("squash", "pad")
PAD_COLOUR = "#7a7468"
"""Colour of the bars beside a padded picture, unless a config names another: the mean of the
pictures that CLIP was trained on, as LLaVA rounds it."""

Region = tuple[int, int, int, int]
"""x0, y0, x1, y1 of what a square shows of an upright picture; bars lie outside of it [pixels]."""

_COLOUR = re.compile(r"#[0-9a-f]{6}")
_UNREAD = {
    "AVIF": ((b"avif", b"avis"), "pillow-avif-plugin"),
    "HEIC": ((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1"), "pillow-heif"),
}
"""Format -> brands of its files (ISO 14496-12, 4.3), and the plugin by which Pillow reads it."""

_TIFF_BITS, _TIFF_PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0
_PNG_BITS = 24
"""TIFF's tags of bits per sample and of the meaning of 0; position of the bits in a PNG [bytes]."""

# Errors that Pillow raises on bad bytes; found by fuzzing, see the test.
_UNDECODABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """Format of stored images, and the accepted input sizes.

    Attributes:
      image_px: side of the square that an image becomes [pixels].
      encoding: "jpeg" (quality 95, full chroma) or "png".
      antialias: whether images are filtered when made smaller.
      min_side: smallest accepted height or width [pixels].
      max_pixels: largest accepted height * width [pixels].
      background: colour that shows through transparent pixels, "#rrggbb".
      aspect: "squash" stretches an image to the square; "pad" first makes it square by bars at its
        shorter sides, as LLaVA does.
      pad_colour: colour of these bars, "#rrggbb".
    """

    image_px: int = 224
    encoding: str = "jpeg"
    antialias: bool = True
    min_side: int = 8
    max_pixels: int = 64_000_000
    background: str = BACKGROUND
    aspect: str = "squash"
    pad_colour: str = PAD_COLOUR

    def __post_init__(self) -> None:
        if self.image_px < 1:
            raise ValueError(f"image_px must be positive, got {self.image_px}.")
        if self.encoding not in ENCODINGS:
            raise ValueError(
                f"encoding must be one of {', '.join(ENCODINGS)}, got {self.encoding!r}."
            )
        if not 1 <= self.min_side**2 <= self.max_pixels:
            raise ValueError(
                f"min_side must be positive and fit max_pixels={self.max_pixels}, "
                f"got {self.min_side}."
            )
        for name in ("background", "pad_colour"):
            if not _COLOUR.fullmatch(colour := getattr(self, name)):
                raise ValueError(
                    f'{name} must be a colour as "#ffffff", in lower case, got {colour!r}.'
                )
        if self.aspect not in ASPECTS:
            raise ValueError(f"aspect must be {' or '.join(ASPECTS)}, got {self.aspect!r}.")


def prepare_image(data: bytes, spec: ImageSpec) -> tuple[bytes, tuple[int, int]]:
    """Returns the encoded square, and the image's original upright width and height [pixels].

    Raises:
      BadInput: if it cannot be decoded or its size is refused.
    """
    image, _ = decode_opaque(data, spec)
    return encode_image(square_image(image, spec), spec.encoding), image.size


def decode_opaque(data: bytes, spec: ImageSpec) -> tuple[Image.Image, bool]:
    """Returns the first frame, upright, in RGB, and whether the background shows in it.

    TensorFlow drops alpha instead, and shows the colour that an editor happened to leave below it:
    black ink on nothing would be a black picture. Nothing but pixels is returned: no comment, no
    colour profile (which is not applied either), no other metadata.

    Raises:
      BadInput: if it cannot be decoded, its size is refused, or no pixel is opaque at all.
    """
    if not data:
        raise BadInput("empty file")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            # Before pixels are decoded: a small file may declare a gigantic picture.
            check_size(*opened.size, min_side=spec.min_side, max_pixels=spec.max_pixels)
            opened.load()  # A truncated file only fails here.
            ImageOps.exif_transpose(opened, in_place=True)
            bits = _gray_bits(opened, data)
            alpha = _image_opacity(opened, bits)
            opened.info.pop("transparency", None)  # Known by now; conversions would warn of it.
            if alpha is not None and alpha.getextrema()[1] == 0:
                # Windows ignores a BMP's alpha, so its programs leave it at 0.
                if opened.format != "BMP":
                    raise BadInput("no pixel is opaque at all")
                alpha = None
            return compose(_to_rgb(opened, bits), alpha, spec.background)
    except BadInput:
        raise
    except _UNDECODABLE as error:
        detail = reason_of(error)
        if "cannot identify image file" in detail:
            detail = unread_format(data) or f"not one of {', '.join(FORMATS)}"
        raise BadInput(f"undecodable: {detail}") from error


def decode_image(
    data: bytes, *, min_side: int, max_pixels: int, background: str = BACKGROUND
) -> Image.Image:
    """Returns the image of `decode_opaque`.

    Raises:
      BadInput: if it cannot be decoded, or is smaller or larger than accepted [pixels].
    """
    bounds = ImageSpec(min_side=min_side, max_pixels=max_pixels, background=background)
    return decode_opaque(data, bounds)[0]


def unread_format(data: bytes) -> str:
    """Returns what a picture is, and how it can be read, by its first bytes; "" if unknown."""
    #     00 00 00 1c  f t y p  h e i c  00 00 00 00  m i f 1  h e i c
    #     box's length          brand                 further brands
    brands = {data[at : at + 4] for at in (8, *range(16, min(int.from_bytes(data[:4]), 64), 4))}
    if data.startswith(POINTER):
        return "a pointer of Git LFS, not the picture; get the files by git lfs pull"
    if data.startswith((b"II*\0", b"MM\0*")):
        return "a TIFF of a kind that Pillow does not read; save it as PNG"
    if data[4:8] == b"ftyp":
        for name, (accepted, plugin) in _UNREAD.items():
            if brands & set(accepted):
                return f"{name}, which Pillow reads with {plugin} only; save it as JPEG or PNG"
    return ""


def compose(
    image: Image.Image, alpha: Image.Image | None, background: str
) -> tuple[Image.Image, bool]:
    """Returns an RGB image over a background, without metadata, and whether that shows.

    Args:
      image: the image, which is changed.
      alpha: opacity of its pixels, 0 to 255; None if all are opaque.
      background: colour, "#rrggbb".
    """
    image.info = {}
    if alpha is None or alpha.getextrema()[0] == 255:
        return image, False
    below = Image.new("RGB", image.size, background)
    below.paste(image, mask=alpha)
    return below, True


def check_size(width: int, height: int, *, min_side: int, max_pixels: int) -> None:
    """Refuses images that are too small to see or too large for memory.

    Raises:
      BadInput: if it is refused, naming the size and the bound [pixels].
    """
    if min(width, height) < min_side:
        raise BadInput(f"too small: {width}x{height}, min_side={min_side}")
    if width * height > max_pixels:
        raise BadInput(f"too large: {width}x{height}, max_pixels={max_pixels}")


def square_region(size: tuple[int, int], spec: ImageSpec) -> Region:
    """Returns the region that the square shows of a picture of a size (width, height) [pixels]."""
    width, height = size
    if spec.aspect == "squash":
        return 0, 0, width, height
    # 100 x 60: the square is 100 x 100 and begins 20 rows above the picture, (0, -20, 100, 80).
    side = max(size)
    left, top = -((side - width) // 2), -((side - height) // 2)
    return left, top, left + side, top + side


def pad_image(image: Image.Image, spec: ImageSpec) -> Image.Image:
    """Returns the image in the middle of a square, if the spec pads; else as it is.

    Source: LLaVA `expand2square` (`llava/mm_utils.py`).

    Raises:
      BadInput: if the square is larger than accepted.
    """
    left, top, right, bottom = square_region(image.size, spec)
    size = right - left, bottom - top
    if size == image.size:
        return image
    # Of a picture of one row, the square has as many pixels as the row, squared.
    if size[0] * size[1] > spec.max_pixels:
        width, height = image.size
        raise BadInput(
            f"too large: {width}x{height} padded to {size[0]}x{size[1]}, "
            f"max_pixels={spec.max_pixels}"
        )
    square = Image.new("RGB", size, spec.pad_colour)
    square.paste(image, (-left, -top))
    return square


def square_image(image: Image.Image, spec: ImageSpec) -> Image.Image:
    """Returns the image as a square; squashed, its aspect ratio is not kept (big_vision `resize`).

    With antialiasing values are rounded, as Pillow does; big_vision truncates them, which makes a
    picture half a grey level darker.

    Raises:
      BadInput: see `pad_image`.
    """
    image = pad_image(image, spec)
    side = (spec.image_px, spec.image_px)
    # Pixels that fit already are not touched, so a stored square stays as it is.
    if image.size == side:
        return image
    if spec.antialias:
        return image.resize(side, Image.Resampling.BILINEAR)
    return Image.fromarray(resize_bilinear(np.asarray(image), spec.image_px))


def resize_bilinear(pixels: np.ndarray, side: int) -> np.ndarray:
    """Returns (H, W, 3) uint8 resized to (side, side, 3) from the two nearest rows and columns.

    Source: TensorFlow `resize_bilinear_op.cc` with half_pixel_centers; the result is truncated to
    uint8 as in big_vision `pp/ops_image.py`.
    """
    # Each output pixel mixes four neighbours, first along x, then along y:
    #
    #     top[x0]    ──x── top[x1]       ─▶ upper ┐
    #     bottom[x0] ──x── bottom[x1]    ─▶ lower ┴ y ─▶ pixel
    y0, y1, y = _nearest_pixels(pixels.shape[0], side)
    x0, x1, x = _nearest_pixels(pixels.shape[1], side)
    x, y = x[None, :, None], y[:, None, None]
    top, bottom = pixels[y0].astype(np.float32), pixels[y1].astype(np.float32)
    upper = top[:, x0] + (top[:, x1] - top[:, x0]) * x
    lower = bottom[:, x0] + (bottom[:, x1] - bottom[:, x0]) * x
    return np.clip(upper + (lower - upper) * y, 0, 255).astype(np.uint8)


def encode_image(image: Image.Image, encoding: str) -> bytes:
    """Returns the encoded bytes: equal pixels give equal bytes."""
    # Pillow writes what it read beside the pixels, such as a JPEG's comment.
    if image.info:
        image = image.copy()
        image.info = {}
    with _memory_file() as buffer:
        if encoding == "png":
            image.save(buffer, "PNG", compress_level=6)
        else:
            image.save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
        buffer.seek(0)
        return buffer.read()


def _memory_file() -> BinaryIO:
    """Returns a file in memory; with an OS-level file, Pillow encodes without holding the GIL."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("image"), "w+b", buffering=0)
    return io.BytesIO()


def _nearest_pixels(size: int, side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # Half-pixel centres: with 4 pixels made 2, output 0 lies at 0.5, halfway between pixels 0 and
    # 1.
    scale = np.float32(size) / np.float32(side)
    position = (np.arange(side, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
    floor = np.floor(position)
    low = np.maximum(floor, 0).astype(np.int64)
    high = np.minimum(np.ceil(position), size - 1).astype(np.int64)
    return low, high, position - floor


def _gray_bits(image: Image.Image, data: bytes) -> int:
    """Returns the bits of a gray sample in the file; 8 where Pillow has scaled it to 8."""
    if image.format == "TIFF" and image.mode.startswith("I;16"):
        return int(image.tag_v2.get(_TIFF_BITS, (16,))[0])  # type: ignore[attr-defined]
    if image.format == "PNG":
        return data[_PNG_BITS]
    return 16 if image.mode.startswith("I;16") else 8


def _image_opacity(image: Image.Image, bits: int) -> Image.Image | None:
    """Returns the opacity of an image's pixels; None if it has no transparency.

    Raises:
      BadInput: if one colour of 16 bits is transparent, which 8 bits cannot tell from others.
    """
    if "A" in image.getbands() and image.mode != "LAB":  # Whose A is a colour's axis.
        return image.getchannel("A")
    clear = image.info.get("transparency")
    if clear is None:
        return None
    if image.mode == "P":
        return image.convert("RGBA").getchannel("A")
    # One colour of a PNG is transparent. It is stated in the file's bits, while Pillow's pixels of
    # 2 and 4 bits are scaled to 8: 15 of 15 is 255.
    pixels = np.asarray(image)
    if image.mode == "1":
        pixels = pixels.astype(np.uint8) * 255
    elif image.mode == "L" and bits < 8:
        clear = clear * 255 // (2**bits - 1)
    elif image.mode == "RGB" and bits > 8:
        raise BadInput("one transparent colour of 16 bits; save it with an alpha channel")
    opaque = pixels != np.array(clear)
    if opaque.ndim == 3:
        opaque = opaque.any(axis=2)
    return Image.fromarray(opaque.astype(np.uint8) * 255)


def _to_rgb(image: Image.Image, bits: int) -> Image.Image:
    if image.mode == "F":
        raise BadInput("mode F: floating-point pixels have no stated range")
    if image.mode == "I":
        raise BadInput("mode I: pixels of 32 bits, or with a sign, have no stated range")
    if image.mode.startswith("I;16"):  # Pillow would clip them to white.
        high = np.asarray(image) >> (bits - 8)
        tags = getattr(image, "tag_v2", {})
        if tags.get(_TIFF_PHOTOMETRIC) == _WHITE_IS_ZERO:
            high = 255 - high
        return Image.fromarray(high.clip(0, 255).astype(np.uint8)).convert("RGB")
    try:
        return image if image.mode == "RGB" else image.convert("RGB")
    except ValueError as error:  # LAB, for one.
        raise BadInput(f"mode {image.mode}: Pillow has no conversion to RGB") from error
