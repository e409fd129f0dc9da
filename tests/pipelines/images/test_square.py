"""Images: every pixel where it belongs, every bad file a reason."""

import io
import random

import numpy as np
import pytest
from PIL import Image

from pipelines.images.square import (
    ImageSpec,
    decode_image,
    encode_image,
    prepare_image,
    resize_bilinear,
    squash_image,
)
from pipelines.records.schema import BadInput

SPEC = ImageSpec(image_px=14, min_side=2)


def save(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def decode(data: bytes) -> np.ndarray:
    return np.asarray(decode_image(data, min_side=2, max_pixels=10_000))


PIXELS = np.random.default_rng(3).integers(0, 256, (5, 7, 3), dtype=np.uint8)


@pytest.mark.parametrize("mode", ["RGBA", "L", "P", "1", "CMYK"])
def test_every_mode_becomes_rgb(mode):
    image = Image.fromarray(PIXELS).convert(mode)
    kind = "TIFF" if mode == "CMYK" else "PNG"
    expected = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(decode(save(image, kind)), expected)


def test_alpha_is_dropped_not_blended():
    image = Image.fromarray(np.dstack([PIXELS, np.zeros((5, 7), np.uint8)]))
    np.testing.assert_array_equal(decode(save(image)), PIXELS)


def test_sixteen_bits_keep_their_high_byte():
    deep = (PIXELS[..., 0].astype(np.uint16) << 8) + 77
    np.testing.assert_array_equal(decode(save(Image.fromarray(deep)))[..., 1], PIXELS[..., 0])


@pytest.mark.parametrize(("orientation", "turns"), [(1, 0), (3, 2), (6, 3), (8, 1)])
def test_exif_orientation_is_applied(orientation, turns):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = save(Image.fromarray(PIXELS), exif=exif)
    np.testing.assert_array_equal(decode(data), np.rot90(PIXELS, turns))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty file"),
        (b"<html>", "not one of JPEG"),
        (save(Image.new("RGB", (1, 9))), "too small: 1x9, min_side=2"),
        (save(Image.new("RGB", (200, 60))), "too large: 200x60, max_pixels=10000"),
        (save(Image.fromarray(PIXELS))[:-30], "undecodable"),
        (save(Image.fromarray(PIXELS), "JPEG")[:-9], "truncated"),
        (save(Image.fromarray(PIXELS[..., 0].astype(np.float32)), "TIFF"), "mode F"),
    ],
)
def test_bad_files_have_a_reason(data, reason):
    with pytest.raises(BadInput, match=reason):
        decode(data)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore:Image size")
def test_fuzzed_files_raise_nothing_else():
    rng = random.Random(0)
    seeds = [
        save(Image.fromarray(PIXELS), k) for k in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")
    ]
    outcomes = set()
    for _ in range(1500):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice([1, 3, 20])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            decode(bytes(data[: rng.choice([len(data), rng.randrange(len(data))])]))
            outcomes.add("decoded")
        except BadInput as error:
            outcomes.add(type(error.__cause__).__name__)
    assert {"decoded", "OSError", "UnidentifiedImageError"} <= outcomes


def test_square_of_the_right_size_is_untouched():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (14, 14, 3), dtype=np.uint8))
    assert squash_image(image, SPEC) is image


@pytest.mark.parametrize("antialias", [True, False])
def test_sides_are_squashed_and_not_swapped(antialias):
    ramp = np.zeros((40, 70, 3), dtype=np.uint8)
    ramp[..., 0] = np.linspace(0, 255, 70)
    ramp[..., 1] = np.linspace(0, 255, 40)[:, None]
    spec = ImageSpec(image_px=10, antialias=antialias)
    small = np.asarray(squash_image(Image.fromarray(ramp), spec)).astype(int)
    assert small.shape == (10, 10, 3)
    assert (np.diff(small[..., 0], axis=1) > 0).all()
    assert (np.diff(small[..., 1], axis=0) > 0).all()
    assert np.ptp(small[..., 0], axis=0).max() <= 1


def test_antialias_averages_what_the_other_skips():
    stripes = np.zeros((60, 60, 3), dtype=np.uint8)
    stripes[:, ::2] = 255
    image = Image.fromarray(stripes)
    smooth = np.asarray(squash_image(image, ImageSpec(image_px=10, antialias=True)))
    assert np.abs(smooth.astype(int) - 127).max() < 12
    sparse = resize_bilinear(np.tile(np.uint8([0, 0, 0, 255])[None, :, None], (60, 15, 3)), 15)
    assert len(np.unique(sparse)) <= 2


def test_bilinear_by_hand():
    # Half-pixel centres at scale 2/3: positions -1/6 (clipped), 0.5, 7/6 (clipped).
    pixels = np.array([[0, 100], [200, 40]], dtype=np.uint8)[..., None].repeat(3, axis=2)
    expected = [[0, 50, 100], [100, 85, 70], [200, 120, 40]]
    np.testing.assert_array_equal(resize_bilinear(pixels, 3)[..., 0], expected)


@pytest.mark.parametrize("encoding", ["jpeg", "png"])
def test_encoding_is_pinned_and_close(encoding):
    smooth = np.asarray(Image.fromarray(PIXELS).resize((14, 14), Image.Resampling.BICUBIC))
    data = encode_image(Image.fromarray(smooth), encoding)
    assert data == encode_image(Image.fromarray(smooth.copy()), encoding)
    back = np.asarray(Image.open(io.BytesIO(data))).astype(int)
    assert np.abs(back - smooth).max() <= (0 if encoding == "png" else 30)


def test_prepared_image_tells_its_upright_size():
    exif = Image.Exif()
    exif[0x0112] = 6
    data, size = prepare_image(save(Image.fromarray(PIXELS), exif=exif), SPEC)
    assert size == (5, 7)
    assert Image.open(io.BytesIO(data)).size == (14, 14)


@pytest.mark.parametrize(
    ("field", "value"), [("image_px", 0), ("encoding", "gif"), ("min_side", 9000)]
)
def test_wrong_spec_names_the_field(field, value):
    with pytest.raises(ValueError, match=f"{field} must .*{value}"):
        ImageSpec(**{field: value})


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(37, 53), (300, 201), (14, 90)])
def test_resizing_equals_tensorflow(shape):
    tf = pytest.importorskip("tensorflow", reason="no TensorFlow: the extra tf installs it")

    pixels = np.random.default_rng(1).integers(0, 256, (*shape, 3), dtype=np.uint8)
    plain = tf.image.resize(pixels, (28, 28)).numpy()
    ours = resize_bilinear(pixels, 28).astype(int)
    assert np.abs(ours - plain.astype(np.uint8)).max() <= 1  # Truncation may fall either way.
    assert (ours == plain.astype(np.uint8)).mean() > 0.999
    smooth = tf.image.resize(pixels, (28, 28), antialias=True).numpy()
    pillow = np.asarray(squash_image(Image.fromarray(pixels), ImageSpec(image_px=28)), dtype=int)
    assert np.abs(pillow - smooth).max() <= 1.6  # Pillow rounds after each of two passes.
