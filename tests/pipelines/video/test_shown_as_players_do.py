"""A clip as players show it: its display matrix, its own length, its transparency."""

import io
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pipelines.images.square import ImageSpec
from pipelines.records.schema import BadInput
from pipelines.video.child import sample_video
from pipelines.video.decoders import decode_frames
from pipelines.video.image_files import prepare_image_files
from pipelines.video.probe import probe_video
from pipelines.video.sampling import FrameSampling
from tests.pipelines.video.decoders import PREFERRED, needs_decord

CORNERS = {"red": (250, 10, 10), "green": (10, 250, 10), "blue": (10, 10, 250), "white": (250,) * 3}
ONE = FrameSampling(num_frames=1, stride=1)
SPEC = ImageSpec(image_px=32, encoding="png")


def quadrants(width: int = 64, height: int = 48) -> np.ndarray:
    """Returns a picture with a colour in each corner: red, green / blue, white."""
    red, green, blue, white = (np.full((height // 2, width // 2, 3), c) for c in CORNERS.values())
    rows = np.hstack([red, green]), np.hstack([blue, white])
    return np.vstack(rows).astype(np.uint8)


def corners(pixels: np.ndarray) -> list[str]:
    """Returns the colours of the corners, row by row."""
    h, w = pixels.shape[0] // 2, pixels.shape[1] // 2
    parts = (pixels[:h, :w], pixels[:h, w:], pixels[h:, :w], pixels[h:, w:])
    means = [part[2:-2, 2:-2].reshape(-1, 3).mean(0) for part in parts]
    return [min(CORNERS, key=lambda c: np.abs(mean - CORNERS[c]).sum()) for mean in means]


def write(path: Path, num: int = 6, *, start: float = 0.0, sound: float = 0.0, **more) -> Path:
    """Writes a clip at 25 frames a second that begins at a time; `sound` is the audio's length."""
    options, size, codec = more.get("options", {}), more.get("size", (64, 48)), more.get("codec")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec or "libx264", rate=25)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.sample_aspect_ratio = more.get("ratio", Fraction(1))
        stream.options = options
        if sound:
            audio = container.add_stream("flac", rate=8000)
            audio.layout = "mono"
        base = Fraction(1, 1000)
        if path.suffix in (".mkv", ".webm"):
            stream.time_base = stream.codec_context.time_base = base
        packets = []
        for i in range(num):
            frame = av.VideoFrame.from_ndarray(quadrants(*size), format="rgb24")
            frame.time_base, frame.pts = base, round((start + i / 25) * 1000)
            packets += stream.encode(frame)
        packets += stream.encode()
        for i in range(round(sound * 10)):
            samples = av.AudioFrame.from_ndarray(
                np.zeros((1, 800), np.int16), format="s16", layout="mono"
            )
            samples.sample_rate, samples.time_base = 8000, Fraction(1, 8000)
            samples.pts = round(start * 8000) + i * 800
            packets += audio.encode(samples)
        if sound:
            packets += audio.encode()
        container.mux(sorted(packets, key=lambda p: (p.dts or 0) * p.time_base))
    return path


def with_matrix(path: Path, a: float, b: float, c: float, d: float) -> Path:
    """Writes a, b, c and d into the display matrix of an MP4's track header."""
    data = bytearray(path.read_bytes())
    values = [round(v * 2**16) for v in (a, b)], [round(v * 2**16) for v in (c, d)]
    at = data.index(b"tkhd") + 44
    data[at : at + 36] = struct.pack(">9i", *values[0], 0, *values[1], 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


def shown(stored: np.ndarray, a: int, b: int, c: int, d: int) -> np.ndarray:
    """Returns pixels placed one by one where a display matrix puts them."""
    height, width = stored.shape[:2]
    places = {(a * x + c * y, b * x + d * y): (x, y) for x in range(width) for y in range(height)}
    left, top = min(x for x, _ in places), min(y for _, y in places)
    size = max(y for _, y in places) - top + 1, max(x for x, _ in places) - left + 1
    pixels = np.zeros((*size, 3), np.uint8)
    for (x, y), (from_x, from_y) in places.items():
        pixels[y - top, x - left] = stored[from_y, from_x]
    return pixels


MATRICES = [(a, 0, 0, d) for a in (1, -1) for d in (1, -1)]
MATRICES += [(0, b, c, 0) for b in (1, -1) for c in (1, -1)]


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("preferred", PREFERRED)
def test_turned_and_mirrored_clips_are_as_players_show_them(tmp_path, matrix, preferred):
    path = str(with_matrix(write(tmp_path / "a.mp4"), *matrix))
    expected = shown(quadrants(), *matrix)
    info = probe_video(path)
    ((_, pixels),) = decode_frames(path, info, [0.0], preferred)[1]
    assert pixels.shape == expected.shape
    assert corners(pixels) == corners(expected)
    # The same in preparation and in `parcel model predict`.
    header, (square,) = sample_video(path, ONE, SPEC, preferred)
    assert tuple(header["size"]) == expected.shape[1::-1]
    (asked,) = prepare_image_files([path], 32, frames=1)
    for image in (square, asked):
        assert corners(np.asarray(Image.open(io.BytesIO(image)))) == corners(expected)


@settings(max_examples=10)
@given(angle=st.floats(3, 87), mirrored=st.booleans(), quarter=st.integers(0, 3))
def test_other_matrices_are_refused(tmp_path_factory, angle, mirrored, quarter):
    turn = np.deg2rad(angle + 90 * quarter)
    a, b, c, d = np.cos(turn), np.sin(turn), -np.sin(turn), np.cos(turn)
    if mirrored:
        a, c = -a, -c
    path = with_matrix(write(tmp_path_factory.mktemp("m") / "a.mp4", 1), a, b, c, d)
    with pytest.raises(BadInput, match="none of quarter turns and mirrors"):
        sample_video(str(path), ONE, SPEC, "pyav")


def test_a_matrix_of_zeros_is_none(tmp_path):
    path = with_matrix(write(tmp_path / "a.mp4"), 0, 0, 0, 0)
    _, (square,) = sample_video(str(path), ONE, SPEC, "pyav")
    assert corners(np.asarray(Image.open(io.BytesIO(square)))) == list(CORNERS)


@pytest.mark.parametrize("start", [0.0, 2.0, 10.0])
@pytest.mark.parametrize("sound", [0.0, 5.0])
@pytest.mark.parametrize("ending", ["mkv", "webm", "mp4", "ts"])
def test_the_length_is_that_of_the_picture(tmp_path, start, sound, ending):
    codec = "libvpx-vp9" if ending == "webm" else "libx264"
    if sound and ending in ("webm", "ts"):
        pytest.skip("no such sound in this container")
    path = write(tmp_path / f"a.{ending}", 40, start=start, sound=sound, codec=codec)
    info = probe_video(str(path))
    assert len(info.times) == 40
    assert info.duration == pytest.approx(1.6, abs=0.05)


@pytest.mark.parametrize("num", [1, 2, 3])
@pytest.mark.parametrize("start", [0.0, 5.0])
@pytest.mark.parametrize("ending", ["mkv", "mp4", "webm"])
def test_a_clip_of_few_frames_is_whole_wherever_it_begins(tmp_path, num, start, ending):
    codec = "libvpx-vp9" if ending == "webm" else "libx264"
    info = probe_video(str(write(tmp_path / f"a.{ending}", num, start=start, codec=codec)))
    assert len(info.times) == num
    assert info.duration == pytest.approx(num / 25, abs=0.01)


@settings(deadline=None, max_examples=20)
@given(
    num=st.integers(2, 40),
    start=st.integers(0, 300).map(lambda tenths: tenths / 10),
    sound=st.integers(0, 60).map(lambda tenths: tenths / 10),
    ending=st.sampled_from(["mkv", "mp4"]),
)
def test_a_drawn_clip_is_as_long_as_its_frames(tmp_path_factory, num, start, sound, ending):
    folder = tmp_path_factory.mktemp("drawn")
    info = probe_video(str(write(folder / f"a.{ending}", num, start=start, sound=sound)))
    assert len(info.times) == num
    assert info.times[0] == pytest.approx(0.0, abs=0.002)
    assert info.duration == pytest.approx(num / 25, abs=0.05)


@pytest.mark.parametrize("sound", [0.0, 8.0])
@pytest.mark.parametrize("start", [0.0, 20.0])
def test_a_broken_download_is_refused_with_and_without_sound(tmp_path, sound, start):
    path = write(tmp_path / "a.mkv", 200, start=start, sound=sound)
    data = path.read_bytes()
    assert len(probe_video(str(path)).times) == 200
    path.write_bytes(data[: len(data) // 3])
    with pytest.raises(BadInput, match=r"truncated: .* of 2?8\.0 declared seconds are present"):
        probe_video(str(path))


@needs_decord
@pytest.mark.parametrize("kind", ["interlaced", "odd"])
def test_decord_gives_the_pixels_of_pyav_or_is_not_used(tmp_path, kind):
    if kind == "odd":
        path = write(tmp_path / "a.webm", size=(64, 47), codec="libvpx-vp9")
    else:
        path = write(tmp_path / "a.mp4", options={"x264-params": "tff=1"})
    results = [sample_video(str(path), ONE, SPEC, decoder)[1] for decoder in ("pyav", "decord")]
    assert results[0] == results[1]


@pytest.mark.parametrize("codec", ["libvpx-vp9", "libvpx"])
@pytest.mark.parametrize("preferred", PREFERRED)
def test_opacity_beside_the_frames_of_webm_shows_the_background(tmp_path, codec, preferred):
    path = tmp_path / "a.webm"
    ink = np.zeros((48, 64, 4), np.uint8)
    ink[:, :32, 3] = 255
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuva420p"
        stream.options = {"auto-alt-ref": "0"}
        for _ in range(6):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(ink, format="rgba")))
        container.mux(stream.encode())
    spec = ImageSpec(image_px=64, encoding="png", background="#00ff00")
    header, squares = sample_video(
        str(path), FrameSampling(num_frames=3, stride=2), spec, preferred
    )
    assert header["composed"]
    assert header["decoded"] == pytest.approx([0, 0.08, 0.16])
    for square in squares:
        pixels = np.asarray(Image.open(io.BytesIO(square))).astype(int)
        assert np.abs(pixels[:, 2:30]).max() < 12
        assert np.abs(pixels[:, 34:62] - (0, 255, 0)).max() < 12


def test_transparent_frames_show_the_background(tmp_path):
    path = tmp_path / "a.gif"
    ink = Image.new("P", (40, 40), 0)
    ink.putpalette([0, 0, 0, 0, 0, 0])
    ink.paste(1, (0, 0, 20, 40))
    frames = [ink.copy() for _ in range(3)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=100, transparency=0)
    spec = ImageSpec(image_px=40, encoding="png", background="#00ff00")
    header, (square,) = sample_video(str(path), ONE, spec, "pyav")
    pixels = np.asarray(Image.open(io.BytesIO(square)))
    assert header["composed"]
    assert (pixels[:, :20] == 0).all()
    assert (pixels[:, 20:] == (0, 255, 0)).all()


PAD = ImageSpec(image_px=64, encoding="png", aspect="pad", pad_colour="#777777")


def content(square: bytes) -> tuple[int, int, list[str]]:
    """Returns width and height of what is no bar in a square, and the colours of its corners."""
    pixels = np.asarray(Image.open(io.BytesIO(square))).astype(int)
    inside = np.abs(pixels - 0x77).max(axis=2) > 60
    rows, columns = inside.mean(axis=1) > 0.2, inside.mean(axis=0) > 0.2
    # Bars are equal, to a pixel.
    for line in (rows, columns):
        assert abs(int(line.argmax()) - int(line[::-1].argmax())) <= 1
    return int(columns.sum()), int(rows.sum()), corners(pixels[rows][:, columns])


@pytest.mark.parametrize("ending", ["mp4", "mkv", "ts", "mpg"])
@pytest.mark.parametrize("preferred", PREFERRED)
@pytest.mark.parametrize(
    ("ratio", "size"),
    [
        (Fraction(1), (64, 48)),  # 64 x 48 of 64 x 64
        (Fraction(2), (64, 24)),  # 128 x 48 of 128 x 128
        (Fraction(1, 2), (43, 64)),  # 64 x 96 of 96 x 96
        (Fraction(12, 11), (64, 44)),  # 70 x 48 of 70 x 70
    ],
)
def test_pixels_that_are_not_square_are_padded_as_shown(tmp_path, ending, preferred, ratio, size):
    codec = "mpeg2video" if ending == "mpg" else None
    if ending == "mpg":  # It has ratios of the whole picture: 4 / 3 and 16 / 9.
        ratio, size = Fraction(4, 3), (64, 36)
    path = write(tmp_path / f"a.{ending}", codec=codec, ratio=ratio)
    _, (square,) = sample_video(str(path), ONE, PAD, preferred)
    width, height, colours = content(square)
    assert (width, height) == pytest.approx(size, abs=1)
    assert colours == list(CORNERS)
    (asked,) = prepare_image_files([str(path)], 64, frames=1, aspect="pad", pad_colour="#777777")
    assert content(asked)[:2] == pytest.approx(size, abs=1)


def pixel_ratio_of_mp4(path: Path, across: int, down: int) -> Path:
    """Writes the ratio into the MP4's own box, beside that of its stream."""
    data = bytearray(path.read_bytes())
    at = data.index(b"pasp") + 4
    data[at : at + 8] = struct.pack(">II", across, down)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("preferred", PREFERRED)
def test_the_ratio_of_the_container_counts(tmp_path, preferred):
    path = pixel_ratio_of_mp4(write(tmp_path / "a.mp4", ratio=Fraction(2)), 1, 2)
    _, (square,) = sample_video(str(path), ONE, PAD, preferred)
    assert content(square)[:2] == pytest.approx((43, 64), abs=1)


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("preferred", PREFERRED)
def test_pixels_that_are_not_square_turn_with_their_clip(tmp_path, matrix, preferred):
    path = with_matrix(write(tmp_path / "a.mp4", size=(48, 48), ratio=Fraction(2)), *matrix)
    _, (square,) = sample_video(str(path), ONE, PAD, preferred)
    width, height, colours = content(square)
    assert (width, height) == pytest.approx((64, 32) if matrix[0] else (32, 64), abs=1)
    assert colours == corners(shown(quadrants(48, 48), *matrix))


@pytest.mark.parametrize("preferred", PREFERRED)
def test_squashed_frames_are_the_same_whatever_the_shape_of_a_pixel(tmp_path, preferred):
    path = write(tmp_path / "a.mp4", ratio=Fraction(2))
    results = []
    for across in (2, 1, 7):
        pixel_ratio_of_mp4(path, across, 1)
        results.append(sample_video(str(path), ONE, SPEC, preferred))
    assert results[0] == results[1] == results[2]
    assert results[0][0]["decoder"] == preferred


def test_frames_that_are_too_wide_as_shown_are_refused_before_they_are(tmp_path):
    path = pixel_ratio_of_mp4(write(tmp_path / "a.mp4", ratio=Fraction(2)), 2**20, 1)
    with pytest.raises(BadInput, match="too large: 67108864x48, max_pixels=64000000"):
        sample_video(str(path), ONE, PAD, "pyav")


@pytest.mark.parametrize("num_visible", [0, 1])
def test_a_clip_of_which_nothing_is_visible_is_refused(tmp_path, num_visible):
    path = tmp_path / "a.webm"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libvpx-vp9", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuva420p"
        for i in range(3):
            pixels = np.full((48, 64, 4), 200, np.uint8)
            pixels[..., 3] = 255 * (i >= 3 - num_visible)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgba")))
        container.mux(stream.encode())
    sampling = FrameSampling(num_frames=3, stride=1)
    if num_visible:  # A clip may begin with nothing.
        assert sample_video(str(path), sampling, SPEC, "pyav")[0]["composed"]
    else:
        with pytest.raises(BadInput, match="no pixel of its frames is opaque at all"):
            sample_video(str(path), sampling, SPEC, "pyav")


def test_frames_are_padded_as_pictures_are(tmp_path):
    path = tmp_path / "wide.gif"
    frames = [Image.new("RGB", (60, 20), (0, 200, shade)) for shade in (0, 200)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=100)
    spec = ImageSpec(image_px=30, encoding="png", aspect="pad")
    header, (square,) = sample_video(str(path), ONE, spec, "pyav")
    pixels = np.asarray(Image.open(io.BytesIO(square))).astype(int)
    assert header["size"] == (60, 20)
    assert np.abs(pixels[11:19] - (0, 200, 0)).max() < 12
    for rows in (pixels[:9], pixels[21:]):
        assert np.abs(rows - (122, 116, 104)).max() < 3
