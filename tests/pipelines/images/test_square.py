"""Images: every pixel where it belongs, every bad file a reason."""

import dataclasses
import io
import random
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image, ImageCms, PngImagePlugin, features

from pipelines.images.square import (
    ImageSpec,
    decode_image,
    decode_opaque,
    encode_image,
    prepare_image,
    resize_bilinear,
    square_image,
    square_region,
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


def test_the_a_of_lab_is_a_colour_and_no_opacity():
    data = save(Image.fromarray(PIXELS).convert("LAB"), "TIFF")
    spec = ImageSpec(min_side=2, background=RED)
    image, is_composed = decode_opaque(data, spec)
    assert not is_composed
    assert np.abs(np.asarray(image).astype(int) - PIXELS).mean() < 8


RED = "#ff0000"


def over(pixels: np.ndarray, alpha: np.ndarray, background: tuple[int, int, int]) -> np.ndarray:
    """Returns pixels (H, W, 3) seen over a background, in plain arithmetic."""
    opacity = alpha[..., None].astype(float) / 255
    return pixels * opacity + np.array(background) * (1 - opacity)


@given(
    alpha=arrays(np.uint8, (5, 7)), pixels=arrays(np.uint8, (5, 7, 3)), kind=st.sampled_from(
        ["PNG", "TIFF", "WEBP", "gray", "palette"]
    )
)  # fmt: skip
def test_transparency_shows_the_background(alpha, pixels, kind):
    assume((alpha > 127).any() if kind == "palette" else alpha.any())
    if kind == "gray":
        pixels[...] = pixels[..., :1]
        image = Image.fromarray(np.dstack([pixels[..., 0], alpha]))
    elif kind == "palette":
        alpha[...] = np.where(alpha < 128, 0, 255)
        pixels[...] = (pixels[..., :1] > 99) * 250
        image = Image.fromarray((pixels[..., 0] > 99) + np.uint8(2) * (alpha == 0), "P")
        image.putpalette([0, 0, 0, 250, 250, 250, 9, 9, 9, 8, 8, 8])
    else:
        image = Image.fromarray(np.dstack([pixels, alpha]))
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    if kind == "palette":
        options["transparency"] = bytes([255, 255, 0, 0])
    data = save(image, kind if kind in ("TIFF", "WEBP") else "PNG", **options)
    for background, colour in (("#ffffff", (255,) * 3), (RED, (255, 0, 0))):
        spec = ImageSpec(min_side=2, background=background)
        opaque, composed = decode_opaque(data, spec)
        assert composed == (alpha < 255).any()
        expected = over(pixels, alpha, colour)
        assert np.abs(np.asarray(opaque) - expected).max() <= 1


def all_clear(kind: str) -> bytes:
    """Returns a file of PIXELS, or of gray ones, whose opacity is 0 throughout."""
    clear = np.dstack([PIXELS, np.zeros_like(PIXELS[..., 0])])
    match kind:
        case "palette":
            return save(Image.fromarray(PIXELS).quantize(4), transparency=bytes(256))
        case "colour":
            return save(Image.new("RGB", (7, 5), RED), transparency=(255, 0, 0))
        case "LA":
            return save(Image.fromarray(clear[..., 2:]))
        case "GIF":
            return save(Image.new("P", (7, 5), 3), kind, transparency=3)
        case "first of two":  # Only the first frame of a GIF is the picture.
            later = [Image.new("P", (7, 5), 2)]
            return save(
                Image.new("P", (7, 5), 3), "GIF", save_all=True, append_images=later, transparency=3
            )
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    return save(Image.fromarray(clear), kind, **options)


@pytest.mark.parametrize(
    "kind", ["PNG", "TIFF", "WEBP", "GIF", "first of two", "palette", "colour", "LA"]
)
def test_a_picture_of_which_nothing_is_visible_is_refused(kind):
    with pytest.raises(BadInput, match="no pixel is opaque at all"):
        decode_opaque(all_clear(kind), ImageSpec(min_side=2))


def test_one_pixel_that_is_hardly_visible_is_enough():
    alpha = np.zeros((5, 7), np.uint8)
    alpha[4, 1] = 1
    data = save(Image.fromarray(np.dstack([PIXELS, alpha])))
    assert decode_opaque(data, ImageSpec(min_side=2))[1]


@pytest.mark.parametrize(("alpha", "is_composed"), [(0, False), (128, True), (255, False)])
@pytest.mark.parametrize("header_size", [56, 108, 124])
def test_a_bmp_without_any_opacity_is_opaque_as_windows_shows_it(header_size, alpha, is_composed):
    pixels = np.dstack([PIXELS[..., ::-1], np.full((5, 7), alpha, np.uint8)])
    pixels[0, 0, 3] = min(alpha, 200)
    masks = struct.pack("<4I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    # Width, height (negative: the top row comes first), planes, bits, 3 for bit fields, sizes.
    header = struct.pack("<IiiHHIIiiII", header_size, 7, -5, 1, 32, 3, 140, 0, 0, 0, 0) + masks
    header += bytes(header_size - len(header))
    offset = 14 + len(header)
    data = struct.pack("<2sIII", b"BM", offset + 140, 0, offset) + header + pixels.tobytes()
    image, composed = decode_opaque(data, ImageSpec(min_side=2))
    assert composed == (is_composed or alpha == 255)
    if not composed:
        np.testing.assert_array_equal(np.asarray(image), PIXELS)


XMP = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description %s</rdf:Description></x:xmpmeta>'
ATTRIBUTE, ELEMENT = 'tiff:Orientation="%d">', "><tiff:Orientation>%d</tiff:Orientation>"


@pytest.mark.parametrize("form", [ATTRIBUTE, ELEMENT])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize(("orientation", "turns"), [(1, 0), (3, 2), (6, 3), (8, 1)])
def test_orientation_in_xmp_is_applied_where_exif_states_none(kind, form, orientation, turns):
    smooth = Image.fromarray(PIXELS[:2, :2]).resize((64, 40), Image.Resampling.BICUBIC)
    xmp = (XMP % form % orientation).encode()
    beside: dict[str, Any] = {"xmp": xmp}
    if kind == "PNG":
        beside = {"pnginfo": PngImagePlugin.PngInfo()}
        beside["pnginfo"].add_itxt("XML:com.adobe.xmp", xmp.decode())
    elif kind == "TIFF":
        beside = {"tiffinfo": {700: xmp}}
    if kind == "WEBP":
        beside["lossless"] = True
    pixels = decode(save(smooth, kind, **beside)).astype(int)
    expected = np.rot90(np.asarray(smooth).astype(int), turns)
    assert pixels.shape == expected.shape
    assert np.abs(pixels - expected).max() < 20
    if kind in ("JPEG", "PNG"):  # What EXIF says counts.
        exif = Image.Exif()
        exif[0x0112] = 1
        pixels = decode(save(smooth, kind, exif=exif, **beside)).astype(int)
        assert np.abs(pixels - np.asarray(smooth)).max() < 20


def png(bits: int, colours: int, samples: list[int], clear: list[int]) -> bytes:
    """Returns a PNG of one row in which one colour is transparent, written by hand."""

    def chunk(name: bytes, data: bytes) -> bytes:
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    row = int("".join(f"{sample:0{bits}b}" for sample in samples), 2)
    size = bits * len(samples) // 8
    width = len(samples) // (3 if colours == 2 else 1)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, 2, bits, colours, 0, 0, 0))
        + chunk(b"tRNS", b"".join(struct.pack(">H", value) for value in clear))
        + chunk(b"IDAT", zlib.compress((b"\0" + row.to_bytes(size, "big")) * 2))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
@given(data=st.data())
def test_one_transparent_gray_is_compared_in_the_bits_of_the_file(bits, data):
    samples = data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=16, max_size=16))
    clear = data.draw(st.sampled_from(samples))
    assume(set(samples) != {clear})
    opaque, composed = decode_opaque(
        png(bits, 0, samples, [clear]), ImageSpec(min_side=2, background=RED)
    )
    scale = 255 / (2**bits - 1)
    assert composed
    for pixel, sample in zip(np.asarray(opaque)[0], samples, strict=True):
        gray = sample >> 8 if bits == 16 else round(sample * scale)
        assert tuple(pixel) == ((255, 0, 0) if sample == clear else (gray,) * 3)


def test_one_transparent_colour():
    data = png(8, 2, [1, 2, 3, 1, 2, 4], [1, 2, 3])
    spec = ImageSpec(min_side=2, background=RED)
    np.testing.assert_array_equal(
        np.asarray(decode_opaque(data, spec)[0])[0], [(255, 0, 0), (1, 2, 4)]
    )
    with pytest.raises(BadInput, match="one transparent colour of 16 bits"):
        decode(png(16, 2, [256, 2, 3, 1, 2, 4], [256, 2, 3]))


@pytest.mark.parametrize("encoding", ["jpeg", "png"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_equal_pixels_are_equal_bytes_whatever_stands_beside_them(kind, encoding):
    text = PngImagePlugin.PngInfo()
    text.add_text("Author", "Jane Doe, 555-0100")
    exif = Image.Exif()
    exif[0x010E] = "Jane Doe, 555-0100"
    beside = {
        "JPEG": {"comment": b"Jane Doe, 555-0100", "dpi": (99, 99)},
        "PNG": {"pnginfo": text, "dpi": (99, 99)},
        "WEBP": {"lossless": True},
        "TIFF": {"description": "Jane Doe, 555-0100"},
    }[kind]
    image, spec = (
        Image.new("RGB", (20, 10), (20, 90, 20)),
        ImageSpec(image_px=10, encoding=encoding),
    )
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    plain = save(image, kind, **({"lossless": True} if kind == "WEBP" else {}))
    told = save(image, kind, exif=exif, icc_profile=profile, **beside)
    assert b"Jane" in told
    for side in (10, 20):  # The second is not resized.
        stored, _ = prepare_image(told, dataclasses.replace(spec, image_px=side))
        assert stored == prepare_image(plain, dataclasses.replace(spec, image_px=side))[0]
        assert b"Jane" not in stored
    direct = Image.open(io.BytesIO(told)).convert("RGB")
    assert b"Jane" not in encode_image(direct, encoding)
    assert b"acsp" not in encode_image(direct, encoding)  # The mark of a colour profile.


@pytest.mark.parametrize("brand", [b"heic", b"mif1"])
def test_an_image_that_needs_a_plugin_says_which(brand):
    data = struct.pack(">I", 24) + b"ftyp" + brand + b"\0\0\0\0mif1heic" + b"\0" * 90
    with pytest.raises(BadInput, match=r"HEIC.*pillow-heif"):
        decode(data)


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow was built without AVIF")
def test_avif_is_read():
    image = Image.new("RGB", (20, 10), (30, 160, 60))
    assert np.abs(decode(save(image, "AVIF", quality=100)).astype(int) - (30, 160, 60)).max() < 4


def tiff(bits: int, sample_format: int, pixels: np.ndarray, photometric: int = 1) -> bytes:
    """Returns a gray TIFF with samples of any kind, written by hand."""
    height, width = pixels.shape
    data = pixels.tobytes() if bits != 12 else _packed12(pixels)
    tags = [
        (256, 3, width), (257, 3, height), (258, 3, bits), (259, 3, 1), (262, 3, photometric),
        (273, 4, 8), (277, 3, 1), (278, 3, height), (279, 4, len(data)), (339, 3, sample_format),
    ]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    directory = struct.pack("<H", len(tags)) + entries + b"\0\0\0\0"
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + directory


def _packed12(pixels: np.ndarray) -> bytes:
    rows = ["".join(f"{value:012b}" for value in row) for row in pixels.tolist()]
    return b"".join(int(row, 2).to_bytes(len(row) // 8, "big") for row in rows)


LEVELS = np.arange(0, 256, 8, dtype=np.int64).reshape(4, 8)


@pytest.mark.parametrize(
    ("bits", "sample_format", "dtype"),
    [(32, 1, "<u4"), (32, 2, "<i4"), (32, 3, "<f4"), (16, 2, "<i2")],
)
@pytest.mark.parametrize("factor", [1, 7, -1])
def test_samples_without_a_stated_range_are_refused(bits, sample_format, dtype, factor):
    values = (LEVELS * factor).astype(dtype)
    with pytest.raises(BadInput, match="no stated range"):
        decode(tiff(bits, sample_format, values))


@pytest.mark.parametrize("photometric", [0, 1])
@pytest.mark.parametrize(("bits", "dtype"), [(8, "u1"), (12, "<u2"), (16, "<u2")])
def test_samples_with_a_range_keep_their_levels(bits, dtype, photometric):
    if bits == 12 and not photometric:
        pytest.skip("Pillow does not read it")
    levels = LEVELS if photometric else 255 - LEVELS
    stored = (levels << (bits - 8)) + (2 ** (bits - 8) - 1) * (photometric == 0)
    found = decode(tiff(bits, 1, stored.astype(dtype), photometric))
    np.testing.assert_array_equal(found[..., 0], LEVELS)


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
        (b"II*\0" + bytes(99), "a TIFF of a kind that Pillow does not read"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a pointer of Git LFS"),
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
    assert square_image(image, SPEC) is image


@pytest.mark.parametrize("antialias", [True, False])
def test_sides_are_squashed_and_not_swapped(antialias):
    ramp = np.zeros((40, 70, 3), dtype=np.uint8)
    ramp[..., 0] = np.linspace(0, 255, 70)
    ramp[..., 1] = np.linspace(0, 255, 40)[:, None]
    spec = ImageSpec(image_px=10, antialias=antialias)
    small = np.asarray(square_image(Image.fromarray(ramp), spec)).astype(int)
    assert small.shape == (10, 10, 3)
    assert (np.diff(small[..., 0], axis=1) > 0).all()
    assert (np.diff(small[..., 1], axis=0) > 0).all()
    assert np.ptp(small[..., 0], axis=0).max() <= 1


def test_antialias_averages_what_the_other_skips():
    stripes = np.zeros((60, 60, 3), dtype=np.uint8)
    stripes[:, ::2] = 255
    image = Image.fromarray(stripes)
    smooth = np.asarray(square_image(image, ImageSpec(image_px=10, antialias=True)))
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
    ("field", "value"),
    [
        ("image_px", 0),
        ("encoding", "gif"),
        ("min_side", 9000),
        ("background", "white"),
        ("pad_colour", "grey"),
        ("aspect", "crop"),
    ],
)
def test_wrong_spec_names_the_field(field, value):
    with pytest.raises(ValueError, match=f"{field} must .*{value}"):
        ImageSpec(**{field: value})


def expand2square(pil_img: Image.Image, background_color: tuple[int, ...]) -> Image.Image:
    """LLaVA's `llava/mm_utils.py`, word for word."""
    width, height = pil_img.size
    if width == height:
        return pil_img
    elif width > height:
        result = Image.new(pil_img.mode, (width, width), background_color)
        result.paste(pil_img, (0, (width - height) // 2))
        return result
    else:
        result = Image.new(pil_img.mode, (height, height), background_color)
        result.paste(pil_img, ((height - width) // 2, 0))
        return result


CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
"""`image_mean` of CLIP's processor."""


@given(st.integers(2, 40), st.integers(2, 40), st.booleans())
def test_padding_is_llavas(width, height, antialias):
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image, bars = Image.fromarray(pixels), tuple(int(255 * mean) for mean in CLIP_MEAN)
    spec = dataclasses.replace(SPEC, encoding="png", aspect="pad", antialias=antialias)
    theirs = expand2square(image, bars)
    squashed = square_image(theirs, dataclasses.replace(spec, aspect="squash"))
    data, size = prepare_image(save(image), spec)
    assert size == (width, height)
    np.testing.assert_array_equal(decode(data), np.asarray(squashed))
    # At full size the picture lies unchanged in the middle, the odd row below or to the right.
    side = max(width, height)
    whole = np.asarray(square_image(image, dataclasses.replace(spec, image_px=side)))
    left, top, right, bottom = square_region((width, height), spec)
    assert (right - left, bottom - top) == (side, side)
    assert 0 <= (bottom - height) + top <= 1
    assert 0 <= (right - width) + left <= 1
    inside = np.zeros((side, side), bool)
    inside[-top : height - top, -left : width - left] = True
    np.testing.assert_array_equal(whole[inside].reshape(pixels.shape), pixels)
    assert (whole[~inside] == (122, 116, 104)).all()


def test_a_strip_that_would_fill_memory_when_padded_is_refused():
    spec = ImageSpec(min_side=2, max_pixels=10_000, aspect="pad")
    strip = save(Image.new("RGB", (400, 20)))
    said = "too large: 400x20 padded to 400x400, max_pixels=10000"
    with pytest.raises(BadInput, match=said):
        prepare_image(strip, spec)
    assert prepare_image(strip, dataclasses.replace(spec, aspect="squash"))[1] == (400, 20)


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
    pillow = np.asarray(square_image(Image.fromarray(pixels), ImageSpec(image_px=28)), dtype=int)
    assert np.abs(pillow - smooth).max() <= 1.6  # Pillow rounds after each of two passes.
