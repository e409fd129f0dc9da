"""Turns encoded images into encoded squares."""

import dataclasses
import io
import os
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageOps

from pipelines.records.schema import BadInput

ENCODINGS = ("jpeg", "png")
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
JPEG_QUALITY = 95

# Errors that Pillow raises on bad bytes; found by fuzzing, see the test.
_UNDECODABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """Format of stored images, and the accepted input sizes.

    Attributes:
      image_px: side of the square into which an image is squashed [pixels].
      encoding: "jpeg" (quality 95, full chroma) or "png".
      antialias: whether images are filtered when made smaller.
      min_side: smallest accepted height or width [pixels].
      max_pixels: largest accepted height * width [pixels].
    """

    image_px: int = 224
    encoding: str = "jpeg"
    antialias: bool = True
    min_side: int = 8
    max_pixels: int = 64_000_000

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


def prepare_image(data: bytes, spec: ImageSpec) -> tuple[bytes, tuple[int, int]]:
    """Returns the squashed, encoded image, and its original upright width and height [pixels].

    Raises:
      BadInput: if it cannot be decoded or its size is refused.
    """
    image = decode_image(data, min_side=spec.min_side, max_pixels=spec.max_pixels)
    return encode_image(squash_image(image, spec), spec.encoding), image.size


def decode_image(data: bytes, *, min_side: int, max_pixels: int) -> Image.Image:
    """Returns the first frame, upright, in RGB. Alpha is dropped, as TensorFlow does.

    Raises:
      BadInput: if it cannot be decoded, or is smaller or larger than accepted [pixels].
    """
    if not data:
        raise BadInput("empty file")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            # Before pixels are decoded: a small file may declare a gigantic picture.
            check_size(*opened.size, min_side=min_side, max_pixels=max_pixels)
            opened.load()  # A truncated file only fails here.
            ImageOps.exif_transpose(opened, in_place=True)
            return _to_rgb(opened)
    except BadInput:
        raise
    except _UNDECODABLE as error:
        detail = " ".join(str(error).split())[:120]
        if "cannot identify image file" in detail:
            detail = f"not one of {', '.join(FORMATS)}"
        raise BadInput(f"undecodable: {type(error).__name__}: {detail}") from error


def check_size(width: int, height: int, *, min_side: int, max_pixels: int) -> None:
    """Refuses images that are too small to see or too large for memory.

    Raises:
      BadInput: if it is refused, naming the size and the bound [pixels].
    """
    if min(width, height) < min_side:
        raise BadInput(f"too small: {width}x{height}, min_side={min_side}")
    if width * height > max_pixels:
        raise BadInput(f"too large: {width}x{height}, max_pixels={max_pixels}")


def squash_image(image: Image.Image, spec: ImageSpec) -> Image.Image:
    """Returns the image resized to a square; its aspect ratio is not kept (big_vision `resize`).

    With antialiasing values are rounded, as Pillow does; big_vision truncates them, which makes a
    picture half a grey level darker.
    """
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


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise BadInput("mode F: floating-point pixels have no stated range")
    if image.mode.startswith("I"):  # 16 bits a pixel; Pillow would clip them to white.
        return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)).convert(
            "RGB"
        )
    return image if image.mode == "RGB" else image.convert("RGB")
