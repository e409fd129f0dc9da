"""Stamps that go back, as where files were joined byte by byte, and those that only look so."""

import re
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from pipelines.images.square import ImageSpec
from pipelines.records.schema import BadInput
from pipelines.video.child import sample_video
from pipelines.video.decoders import decode_frames
from pipelines.video.probe import probe_video
from pipelines.video.sampling import FrameSampling

RED, BLUE = (240, 16, 16), (16, 16, 240)
WRAP = 2**33 / 90_000
"""Time at which the stamps of transport and program streams begin again [s]."""

FORMS = {
    "ts": ("libx264", None, {}),
    "m2v.ts": ("mpeg2video", None, {}),
    "mpg": ("mpeg2video", "mpeg", {}),
    "mkv": ("libx264", None, {}),
    "webm": ("libvpx-vp9", None, {}),
    "mp4": ("libx264", None, {"movflags": "frag_keyframe+empty_moov"}),
    "ogv": ("libvpx", "ogg", {}),
    "flv": ("flv", None, {}),
}
"""Ending -> codec, container and the container's options."""


def write(
    path: Path,
    colour: tuple[int, ...],
    num: int,
    *,
    start: float = 0.0,
    height: int = 48,
    bf: int = 2,
) -> bytes:
    """Returns the bytes of a clip at 25 frames a second, whose stamps begin at a time [s]."""
    codec, form, options = FORMS[path.name.partition(".")[2]]
    with av.open(str(path), "w", format=form, options=options) as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, height, "yuv420p"
        if codec in ("libx264", "mpeg2video"):
            stream.options = {"bf": str(bf), "g": "6"}
        pixels = np.full((height, 64, 3), colour, np.uint8)
        for i in range(num):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = round(start * 25) + i, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path.read_bytes()


def colours(path: Path, times: list[float]) -> list[str]:
    frames = decode_frames(str(path), probe_video(str(path)), times, "pyav")[1]
    return ["red" if p[..., 0].mean() > p[..., 2].mean() else "blue" for _, p in frames]


@pytest.mark.parametrize("ending", [ending for ending in FORMS if ending != "flv"])
@pytest.mark.parametrize(("num", "num_later"), [(12, 11), (7, 8), (3, 29)])
def test_joined_files_whose_stamps_begin_again_are_refused(tmp_path, ending, num, num_later):
    path = tmp_path / f"a.{ending}"
    first, later = write(path, RED, num), write(path, BLUE, num_later)
    assert len(probe_video(str(path)).times) == num_later
    path.write_bytes(first + later + later)
    # Chained Ogg has a packet with the last stamp of the part before, and the edit list of the
    # second MP4 hides the beginning of its part.
    number = {"ogv": num + 2, "mp4": r"\d+"}.get(ending, num + 1)
    with pytest.raises(BadInput, match=rf"stamps begin again at packet {number}:"):
        sample_video(str(path), FrameSampling(num_frames=4, stride=6), ImageSpec(), "pyav")


@pytest.mark.parametrize("ending", ["ts", "mpg"])
@pytest.mark.parametrize("start", [3.0, 300.0])
def test_a_later_part_may_begin_before_the_first(tmp_path, ending, start):
    path = tmp_path / f"a.{ending}"
    # Far below the first stamp, FFmpeg takes it for the wrap of 33 bits.
    path.write_bytes(write(path, RED, 12, start=start) + write(path, BLUE, 11))
    with pytest.raises(BadInput, match=r"stamps begin again at packet 13:"):
        probe_video(str(path))


@pytest.mark.parametrize(("height", "bf"), [(48, 2), (32, 2), (48, 0)])
@pytest.mark.parametrize("gap", [0.0, 20.0])
def test_joined_files_whose_stamps_go_on_are_one_clip(tmp_path, height, bf, gap):
    path = tmp_path / "a.ts"
    # The decoding times of B-frames begin before those of the last frames without any.
    start = 2.0 + 12 / 25 + gap
    first = write(path, RED, 12, start=2.0, bf=bf)
    path.write_bytes(first + write(path, BLUE, 11, start=start, height=height))
    info = probe_video(str(path))
    assert len(info.times) == 23
    assert info.duration == pytest.approx(start - 2.0 + 11 / 25)
    times = [0.0, 0.4, start - 2.0 + 0.01, start - 2.0 + 0.4]
    assert colours(path, times) == ["red", "red", "blue", "blue"]


def test_the_wrap_of_33_bits_is_no_new_beginning(tmp_path):
    path = tmp_path / "a.ts"
    write(path, RED, 60, start=WRAP - 2.4)
    assert len(probe_video(str(path)).times) == 60
    # A part before the wrap and one after it go on, too.
    first = write(path, RED, 12, start=WRAP - 2.4)
    path.write_bytes(first + write(path, BLUE, 60, start=WRAP - 2.4 + 12 / 25))
    info = probe_video(str(path))
    assert info.duration == pytest.approx(72 / 25)
    assert colours(path, [0.0, 0.4, 0.6, 2.8]) == ["red", "red", "blue", "blue"]


def test_stamps_that_tremble_are_no_new_beginning(tmp_path):
    path = tmp_path / "a.flv"
    data = write(path, RED, 20)
    # A tag of pictures: 9, its size, its time [ms] and the stream, 0. A clock trembles: 480 ms
    # becomes 430, after 440.
    tag = rb"(\x09...)%b(\0{4})"
    before, after = (number.to_bytes(3) for number in (480, 430))
    changed, count = re.subn(
        tag % re.escape(before), rb"\1" + after + rb"\2", data, flags=re.DOTALL
    )
    assert count == 1
    path.write_bytes(changed)
    times = probe_video(str(path)).times
    assert times[10:13] == pytest.approx((0.4, 0.43, 0.44))
    assert len(times) == 20
