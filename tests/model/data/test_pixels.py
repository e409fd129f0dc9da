"""Pixels are Pillow's, whichever way they come."""

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from model.data.pixels import decode_images, jpeg_size
from tests.model.tiny_data import color_record


def encoded(image: Image.Image, kind: str = "JPEG", **how: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


@given(
    side=st.integers(1, 40),
    quality=st.integers(1, 100),
    subsampling=st.integers(0, 2),
    progressive=st.booleans(),
    exif=st.binary(max_size=300),
)
def test_a_jpeg_of_the_models_size_is_what_pillow_opens(side, exif, **how):
    data = encoded(noise(side, side), exif=b"Exif\0\0" + exif, **how)
    assert jpeg_size(data) == (side, side)
    np.testing.assert_array_equal(
        decode_images([data], 1, side)[0], np.asarray(Image.open(io.BytesIO(data)))
    )


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        (noise(9, 9), "PNG"),
        (noise(9, 9, "L"), "JPEG"),
        (noise(9, 9, "CMYK"), "JPEG"),
        (noise(9, 9, "P"), "PNG"),
        (noise(12, 9), "JPEG"),
    ],
)
def test_what_is_no_such_jpeg_is_opened_and_resized(image: Image.Image, kind: str):
    data = encoded(image, kind)
    whole = Image.open(io.BytesIO(data)).convert("RGB")
    expected = whole.resize((9, 9), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(decode_images([data], 1, 9)[0], np.asarray(expected))
    assert jpeg_size(data) in (None, (12, 9))


def test_one_that_is_cut_off_is_an_error():
    data = encoded(noise(40, 40))
    with pytest.raises(OSError, match="truncated"):
        decode_images([data[: len(data) // 2]], 1, 40)


@given(data=st.binary(max_size=60), at=st.integers(0, 200), length=st.integers(0, 200))
def test_no_bytes_break_the_look_at_the_header(data, at, length):
    whole = encoded(noise(8, 8))
    for damaged in (data, b"\xff\xd8" + data, whole[:at] + data + whole[at:], whole[:length]):
        assert jpeg_size(damaged) is None or len(damaged) > 10


def test_frames_are_thinned_or_repeated():
    record = color_record(0, images=5)
    frames = decode_images(record.images, 5, 32)
    np.testing.assert_array_equal(decode_images(record.images, 3, 32), frames[[0, 1, 3]])
    np.testing.assert_array_equal(
        decode_images(record.images, 7, 32), frames[[0, 1, 2, 3, 4, 0, 1]]
    )
    assert decode_images(record.images, 7, 24).shape == (7, 24, 24, 3)
