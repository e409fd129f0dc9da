"""Video: the right frame at the right time, and nothing that hangs, crashes or ends short."""

import dataclasses
import io
import sys

import numpy as np
import pytest
from PIL import Image

from pipelines.images.square import ImageSpec
from pipelines.prepare.config import PrepareConfig
from pipelines.records.schema import BadInput
from pipelines.video.client import VideoChild, VideoLimits, installed_decoder
from pipelines.video.decoders import decode_frames
from pipelines.video.probe import probe_video
from pipelines.video.sampling import FrameSampling
from tests.pipelines.video.decoders import needs_decord

SPEC = ImageSpec(image_px=16, encoding="png", antialias=False)


def levels(images) -> list[int]:
    """Returns which frame each image is, by its grey level (see `write_video`)."""
    return [round((np.asarray(Image.open(io.BytesIO(i))).mean() - 10) / 4) for i in images]


@pytest.fixture
def child():
    child = VideoChild(VideoLimits())
    yield child
    child.close()


@pytest.mark.parametrize(
    ("duration", "times"),
    [(9.0, [0.0, 2.0, 4.0, 6.0]), (4.0, [0.0, 2.0]), (0.0, [0.0])],
)
def test_times_stop_at_the_end(duration, times):
    assert FrameSampling(num_frames=4, stride=50).windows(duration)[0] == times


def test_centre_window_is_centred():
    assert FrameSampling(num_frames=3, stride=25, window="centre").windows(10.0)[0] == [
        4.0,
        5.0,
        6.0,
    ]


@pytest.mark.parametrize(("draw", "start"), [(0.0, 0.0), (0.5, 4.0), (0.999, 7.992)])
def test_random_window_begins_where_the_draw_says_and_fits(draw, start):
    sampling = FrameSampling(num_frames=3, stride=25, window="random", draw=draw)
    times = sampling.windows(10.0)[0]
    assert times == pytest.approx([start, start + 1, start + 2])
    assert sampling.windows(1.5)[0][0] == 0  # Nothing to choose from.


@pytest.mark.parametrize(
    ("window", "start", "end", "times"),
    [
        ("first", 2.0, 4.0, [2.0, 3.0]),
        ("first", 2.0, None, [2.0, 3.0, 4.0]),
        ("first", 8.5, 99.0, [8.5, 9.5]),
        ("centre", 2.0, 6.0, [3.0, 4.0, 5.0]),
        ("random", 2.0, 6.0, [3.5, 4.5, 5.5]),
        ("first", 3.0, 3.0, [3.0]),
    ],
)
def test_windows_of_a_part_lie_in_it(window, start, end, times):
    part = {"window": window, "start": start, "end": end, "draw": 0.75}
    assert FrameSampling(num_frames=3, stride=25, **part).windows(10.0)[0] == pytest.approx(times)


def test_part_that_is_not_there_is_named():
    with pytest.raises(BadInput, match=r"from 10 s .*end, 10\.00 s"):
        FrameSampling(num_frames=1, stride=1, start=10.0).windows(10.0)[0]
    with pytest.raises(ValueError, match=r"start must be in 0\.\.end, got 2 and 1"):
        FrameSampling(num_frames=1, stride=1, start=2, end=1)


def test_draw_outside_of_its_range_is_named():
    with pytest.raises(ValueError, match=r"draw must be in \[0, 1\), got 1"):
        FrameSampling(num_frames=1, stride=1, draw=1)


@pytest.mark.parametrize(
    ("window", "begins"),
    [("first", [0, 2, 4, 6]), ("centre", [4, 6, 0, 2]), ("random", [5, 7, 1, 3])],
)
def test_windows_are_spread_over_the_video_from_the_one_that_is_asked_for(window, begins):
    sampling = FrameSampling(
        num_frames=3, stride=25, window=window, draw=0.625, num_windows=len(begins)
    )
    found = sampling.windows(10.0)
    assert [times[0] for times in found] == pytest.approx(begins)
    for times in found:
        assert times == pytest.approx([times[0], times[0] + 1, times[0] + 2])


def test_a_video_that_one_window_fills_has_one():
    assert FrameSampling(num_frames=3, stride=25, num_windows=4).windows(1.5) == [[0.0, 1.0]]


def test_frames_of_windows_are_those_of_windows_decoded_alone(child, write_video, tmp_path):
    path = str(write_video(tmp_path / "a.mp4", num_frames=60))
    four = FrameSampling(num_frames=5, stride=10, window="centre", num_windows=4)
    clip = child.sample(path, four, SPEC)
    assert (clip.num_windows, len(clip.images)) == (4, 20)
    for number in range(4):
        draw = (0.5 + number / 4) % 1
        one = dataclasses.replace(four, window="random", draw=draw, num_windows=1)
        alone = child.sample(path, one, SPEC)
        assert clip.images[5 * number : 5 * number + 5] == alone.images
        assert clip.decoded[5 * number : 5 * number + 5] == alone.decoded


def test_short_videos_repeat_from_the_start():
    assert FrameSampling(num_frames=7, stride=1).loop(3) == [0, 1, 2, 0, 1, 2, 0]


def test_wrong_sampling_names_the_field():
    with pytest.raises(ValueError, match=r"num_frames, frame_stride and num_windows .*got 0"):
        FrameSampling(num_frames=0, stride=1)
    with pytest.raises(ValueError, match=r"window .*first, centre, random, got 'last'"):
        FrameSampling(num_frames=1, stride=1, window="last")


def test_frames_are_those_shown_at_the_times(tmp_path, write_video, child):
    path = write_video(tmp_path / "a.mp4", num_frames=30, fps=10)
    pixels = child.sample(str(path), FrameSampling(num_frames=5, stride=16), SPEC)
    assert pixels.requested == pytest.approx([0, 0.64, 1.28, 1.92, 2.56])
    assert pixels.decoded == pytest.approx([0, 0.6, 1.2, 1.9, 2.5])
    assert levels(pixels.images) == [0, 6, 12, 19, 25]
    assert pixels.size == (64, 48)


def test_short_clip_loops(tmp_path, write_video, child):
    path = write_video(tmp_path / "a.mp4", num_frames=12, fps=10)
    pixels = child.sample(str(path), FrameSampling(num_frames=5, stride=15), SPEC)
    assert levels(pixels.images) == [0, 6, 0, 6, 0]
    assert pixels.requested == pytest.approx([0, 0.6, 0, 0.6, 0])


def test_pyav_stands_in_for_a_decord_that_is_not_installed(monkeypatch):
    assert PrepareConfig(decoder="decord").video_limits().decoder == installed_decoder("decord")
    monkeypatch.setitem(sys.modules, "decord", None)
    assert PrepareConfig(decoder="decord").video_limits().decoder == "pyav"
    with pytest.raises(ValueError, match=r"decoder .*pyav or decord, got 'opencv'"):
        PrepareConfig(decoder="opencv")


@needs_decord
@pytest.mark.parametrize(("name", "codec"), [("a.mp4", "libx264"), ("a.avi", "mpeg4")])
def test_decoders_agree_where_decord_is_allowed(tmp_path, write_video, name, codec):
    path = str(write_video(tmp_path / name, codec=codec))
    info = probe_video(path)
    times = [0.0, 0.75, 2.0, 2.9]
    (ours_by, ours), (other_by, other) = (
        (used, list(frames))
        for used, frames in (decode_frames(path, info, times, name) for name in ("pyav", "decord"))
    )
    assert (ours_by, other_by) == ("pyav", "decord" if codec == "libx264" else "pyav")
    assert [t for t, _ in ours] == pytest.approx([t for t, _ in other])
    for (_, a), (_, b) in zip(ours, other, strict=True):
        np.testing.assert_allclose(a.astype(int), b.astype(int), atol=2)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "unreadable video"), (b"RIFF nothing", "unreadable video"), (None, "unreadable video")],
)
def test_unreadable_files_have_a_reason(tmp_path, child, content, reason):
    path = tmp_path / "a.webm"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match=reason) as caught:
        child.sample(str(path), FrameSampling(num_frames=2, stride=1), SPEC)
    assert str(tmp_path) not in str(caught.value)


def test_truncated_matroska_does_not_pass_for_a_short_one(tmp_path, write_video, child):
    path = write_video(tmp_path / "a.mkv", num_frames=60, fps=10)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BadInput, match=r"truncated: \d\.\d of 6\.0 declared seconds"):
        child.sample(str(path), FrameSampling(num_frames=2, stride=1), SPEC)


def test_audio_only_is_named(tmp_path, child):
    import av

    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with pytest.raises(BadInput, match="no video stream, only audio"):
        child.sample(str(path), FrameSampling(num_frames=2, stride=1), SPEC)


def test_tiny_frames_are_refused(tmp_path, write_video, child):
    path = write_video(tmp_path / "a.mp4")
    spec = ImageSpec(min_side=50)
    with pytest.raises(BadInput, match="too small: 64x48, min_side=50"):
        child.sample(str(path), FrameSampling(num_frames=2, stride=1), spec)


@pytest.mark.slow
def test_memory_is_bounded(tmp_path, write_video):
    child = VideoChild(VideoLimits(memory_mb=20))  # Less than a decoder takes.
    path = str(write_video(tmp_path / "a.mp4"))
    with pytest.raises(BadInput, match=r"the decoder died|out of memory"):
        child.sample(path, FrameSampling(num_frames=1, stride=1), SPEC)
    child.close()


@pytest.mark.slow
def test_children_are_replaced(tmp_path, write_video):
    path = str(write_video(tmp_path / "a.mp4"))
    child = VideoChild(VideoLimits(clips_per_child=2))
    pids = []
    for _ in range(4):
        child.sample(path, FrameSampling(num_frames=1, stride=1), SPEC)
        pids.append(child._process.pid)
    child.close()
    assert pids[0] == pids[1] != pids[2] == pids[3]
