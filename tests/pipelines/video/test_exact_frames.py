"""Where leaving out packets, or an edit list, could show another frame: it does not."""

import dataclasses
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from pipelines.records.schema import BadInput
from pipelines.video.decoders import decode_frames, decode_pyav
from pipelines.video.probe import probe_video
from tests.pipelines.video.decoders import PREFERRED
from tests.pipelines.video.test_frames import in_sequence, picture

NUM, WIDTH, HEIGHT, FPS = 56, 64, 48, 25

STREAMS = {
    "b_frames.mp4": "bframes=3:keyint=12:min-keyint=12",
    "pyramid.mkv": "bframes=7:b-pyramid=normal:keyint=60:ref=4",
    "one_key_frame.mp4": "bframes=2:keyint=250",
    "open_gop.mp4": "open-gop=1:bframes=3:keyint=10:min-keyint=10",
    "refresh.mkv": "intra-refresh=1:keyint=15:bframes=0",
    "no_b_frames.mov": "bframes=0:keyint=7",
    "fields.mp4": "tff=1:bframes=3:keyint=12",
    "units.ts": "bframes=3:keyint=12",
}
"""Files of H.264 and how x264 made them."""


def write(path: Path, options: str, *, faststart: bool = False) -> Path:
    flags = {"movflags": "faststart"} if faststart else {}
    with av.open(str(path), "w", options=flags) as container:
        stream = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.options = {"x264-params": f"{options}:scenecut=0"}
        if path.suffix == ".mkv":
            stream.time_base = Fraction(1, 1000)
        for i in range(NUM):
            frame = av.VideoFrame.from_ndarray(picture(i, WIDTH, HEIGHT), format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def with_edits(path: Path, *edits: tuple[int, int | None]) -> Path:
    """Rewrites a file's edit list: (number of frames, first of them, or None for a pause)."""
    data = path.read_bytes()
    scale = int.from_bytes(data[(at := data.index(b"mdhd") + 16) : at + 4])
    overall = int.from_bytes(data[(at := data.index(b"mvhd") + 16) : at + 4])
    at = data.index(b"elst")
    delay = int.from_bytes(data[at + 16 : at + 20])  # Of the first frame, for the B frames.
    rows = b"".join(
        struct.pack(
            ">IiI",
            num * overall // FPS,
            -1 if first is None else delay + first * scale // FPS,
            1 << 16,
        )
        for num, first in edits
    )
    size = int.from_bytes(data[at - 4 : at])
    grown = len(rows) + 16 - size
    changed = bytearray(data)
    changed[at + 8 : at - 4 + size] = struct.pack(">I", len(edits)) + rows
    for box in (b"elst", b"edts", b"trak", b"moov"):  # The index is last: no sample moves.
        place = data.index(box) - 4
        changed[place : place + 4] = struct.pack(
            ">I", int.from_bytes(data[place : place + 4]) + grown
        )
    path.write_bytes(changed)
    return path


def drawn(pixels: np.ndarray) -> int:
    """Returns which `picture` it is."""
    return min(
        range(NUM), key=lambda i: np.abs(pixels.astype(int) - picture(i, WIDTH, HEIGHT)).mean()
    )


EDITS = {
    "leading frames are hidden": (((NUM - 7, 7),), list(range(7, NUM))),
    "the end is hidden": (((20, 0),), list(range(20))),
    "the end is hidden from a key frame on": (((24, 0),), list(range(24))),
    "the start is shifted": (((10, None), (NUM, 0)), list(range(NUM))),
    "the middle is cut out": (((10, 0), (NUM - 31, 31)), [*range(10), *range(31, NUM)]),
}


@pytest.mark.parametrize("kind", list(EDITS))
@pytest.mark.parametrize("preferred", PREFERRED)
def test_edit_lists_are_followed(tmp_path, kind, preferred):
    edits, shown = EDITS[kind]
    path = with_edits(write(tmp_path / "a.mp4", "bframes=3:keyint=12:min-keyint=12"), *edits)
    frames = in_sequence(path)
    assert [drawn(pixels) for _, pixels in frames] == shown
    info = probe_video(str(path))
    assert len(info.times) == len(frames)
    assert info.starts == () or info.hidden == 0
    times = [i * info.duration / 16 for i in range(16)]
    found = list(decode_frames(str(path), info, times, preferred)[1])
    for requested, (decoded, pixels) in zip(times, found, strict=True):
        at, expected = [frame for frame in frames if frame[0] <= requested + 1e-4][-1]
        assert decoded == pytest.approx(at, abs=1e-3)
        np.testing.assert_allclose(pixels.astype(int), expected, atol=2)


def test_truncated_file_is_told_from_an_edit_list_that_ends_early(tmp_path):
    path = write(tmp_path / "a.mp4", "bframes=0", faststart=True)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BadInput, match=r"truncated: \d+ of 56 declared frames are present"):
        probe_video(str(path))


@pytest.mark.parametrize("name", list(STREAMS))
def test_every_single_frame_is_that_of_decoding_in_sequence(tmp_path, name):
    path = write(tmp_path / name, STREAMS[name])
    info = probe_video(str(path))
    assert bool(info.starts) == (name != "units.ts")
    for (at, expected), time in zip(in_sequence(path), info.times, strict=True):
        ((decoded, pixels),) = decode_pyav(str(path), info, [time])
        assert decoded == pytest.approx(at, abs=1e-6)
        np.testing.assert_array_equal(pixels, expected)


def test_several_frames_at_once_and_one_frame_twice(tmp_path):
    path = write(tmp_path / "a.mp4", STREAMS["b_frames.mp4"])
    info, frames = probe_video(str(path)), in_sequence(path)
    assert len(info.starts) == 5
    indices = [0, 0, 1, 2, 11, 12, 13, 30, 30, 47, 55]
    found = list(decode_pyav(str(path), info, [info.times[i] + 0.001 for i in indices]))
    for index, (decoded, pixels) in zip(indices, found, strict=True):
        assert decoded == pytest.approx(frames[index][0])
        np.testing.assert_array_equal(pixels, frames[index][1])


def test_only_what_is_needed_is_decoded(tmp_path):
    path = write(tmp_path / "a.mp4", STREAMS["b_frames.mp4"])
    data = bytearray(path.read_bytes())
    info = probe_video(str(path))
    with av.open(str(path)) as container:
        packets = [p for p in container.demux(video=0) if p.size]
    assert packets[info.starts[2]].is_keyframe
    for packet in packets[info.starts[1] : info.starts[2]]:  # Nobody looks at these.
        data[packet.pos + 5 : packet.pos + packet.size] = b"\xff" * (packet.size - 5)
    path.write_bytes(data)
    frames = [info.times[i] for i in (3, 30, 55)]
    assert [drawn(p) for _, p in decode_pyav(str(path), info, frames)] == [3, 30, 55]


def test_open_groups_are_not_begun_in(tmp_path):
    info = probe_video(str(write(tmp_path / "a.mp4", STREAMS["open_gop.mp4"])))
    with av.open(str(tmp_path / "a.mp4")) as container:
        assert sum(p.is_keyframe for p in container.demux(video=0) if p.size) > 1
    assert info.starts == (0,)


def test_damage_that_passes_shows_the_same_frames(tmp_path):
    """Nearly: some is concealed with what was decoded before; but the same way every time."""
    whole = write(tmp_path / "a.mp4", STREAMS["b_frames.mp4"]).read_bytes()
    rng = np.random.default_rng(0)
    start, end = whole.index(b"mdat") + 4, whole.index(b"moov") - 4
    same = []
    for number in range(30):
        data = bytearray(whole)
        for at in rng.integers(start, end, 2):
            data[at] ^= 1 << rng.integers(8)
        path = tmp_path / f"{number}.mp4"
        path.write_bytes(data)
        info = probe_video(str(path))
        times = [info.times[i] for i in range(3, NUM, 12)]
        in_full = dataclasses.replace(info, starts=())
        try:
            frames = list(decode_pyav(str(path), in_full, times))
        except BadInput:
            continue
        found, again = ([p for _, p in decode_pyav(str(path), info, times)] for _ in "ab")
        np.testing.assert_array_equal(found, again)
        same.append(np.array_equal(found, [p for _, p in frames]))
    assert len(same) > 10
    assert np.mean(same) > 0.9


def test_damage_where_it_matters_is_a_reject(tmp_path):
    path = write(tmp_path / "a.mp4", STREAMS["b_frames.mp4"])
    info, data = probe_video(str(path)), bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        packets = [p for p in container.demux(video=0) if p.size]
    for packet in packets[info.starts[2] : info.starts[3]]:
        data[packet.pos : packet.pos + packet.size] = b"\xff" * packet.size
    path.write_bytes(data)
    with pytest.raises(BadInput, match=r"undecodable video after \d\d frames"):
        list(decode_pyav(str(path), info, [info.times[i] for i in (3, 30)]))
