"""The decoding of images to pixels."""

import io
import struct
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image

try:
    import simplejpeg
except ImportError:  # An accelerator's machine may lack it: Pillow gives the same pixels.
    simplejpeg = None

_FRAME = struct.Struct(">BHHB")
"""Fields of a JPEG's frame header: bits of a sample, height, width, components."""


def decode_images(
    images: Sequence[bytes], num_images: int, image_px: int
) -> UInt8[np.ndarray, "I H W 3"]:
    """Returns the pixels of encoded images.

    More images than `num_images` are thinned out evenly, fewer are repeated in turn. Images of
    another size than `image_px` are resized; training and evaluation refuse smaller ones.
    """
    pixels = np.empty((num_images, image_px, image_px, 3), np.uint8)
    decode_into(pixels, images)
    return pixels


def decode_into(pixels: UInt8[np.ndarray, "I H W 3"], images: Sequence[bytes]) -> None:
    """Fills an array with the pixels that `decode_images` returns."""
    count, num_slots = len(images), len(pixels)
    # 5 frames in 3 slots: frames 0 1 3. 2 frames in 5 slots: 0 1 0 1 0. One that comes again is
    # copied, not decoded a second time.
    first: dict[int, int] = {}
    for slot in range(num_slots):
        index = slot * count // num_slots if count > num_slots else slot % count
        if index in first:
            pixels[slot] = pixels[first[index]]
        else:
            first[index] = slot
            _decode_image_into(images[index], pixels[slot])


def _decode_image_into(encoded: bytes, pixels: UInt8[np.ndarray, "H W 3"]) -> None:
    image_px = len(pixels)
    if simplejpeg is not None and jpeg_size(encoded) == (image_px, image_px):
        # libjpeg-turbo, as Pillow has it and set up as Pillow does, so the pixels are the same; but
        # into the batch, without a copy: 0.45 ms a picture of 224 px instead of 0.62.
        try:
            simplejpeg.decode_jpeg(encoded, "RGB", buffer=pixels)
        except ValueError:  # Cut off, or odd: Pillow reports it, or reads it.
            pass
        else:
            return
    pixels[:] = _decode_with_pillow(encoded, image_px)


def _decode_with_pillow(encoded: bytes, image_px: int) -> UInt8[np.ndarray, "H W 3"]:
    size = (image_px, image_px)
    with Image.open(io.BytesIO(encoded)) as image:
        rgb = image if image.mode == "RGB" else image.convert("RGB")
        if rgb.size != size:
            rgb = rgb.resize(size, Image.Resampling.BILINEAR)
        return np.asarray(rgb)


def jpeg_size(encoded: bytes) -> tuple[int, int] | None:
    """Returns (width, height) of a JPEG with three components of 8 bits; None for anything else.

    Source: ITU-T T.81, B.1.1 and B.2.2: a JPEG consists of segments, each with a marker and a
    length; the frame header is one of them.
    """
    # Walks from segment to segment, without decoding:
    #
    #     FF D8 | FF E0 length … | FF DB length … | FF C0 length 08 height width 03 …
    #     start   ignored          ignored          frame header: 8 bits, 3 components
    offset = 2 if encoded.startswith(b"\xff\xd8") else len(encoded)
    while offset + 10 <= len(encoded) and encoded[offset] == 0xFF:
        marker, segment = encoded[offset + 1], offset + 2
        if marker in (0xC0, 0xC1, 0xC2):  # Baseline, extended, progressive.
            bits, height, width, components = _FRAME.unpack_from(encoded, segment + 2)
            return (width, height) if (bits, components) == (8, 3) else None
        if not 0xC4 <= marker <= 0xFE or 0xD0 <= marker <= 0xDA:
            return None
        offset = segment + int.from_bytes(encoded[segment : segment + 2])
    return None
