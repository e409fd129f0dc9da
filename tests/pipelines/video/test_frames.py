"""Every kind of file: the frame at a time is the one that decoding in sequence shows then."""

import io
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from pipelines.images.square import ImageSpec
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.run import prepare_dataset
from pipelines.records.dataset import Dataset
from pipelines.records.schema import BadInput
from pipelines.video.client import VideoChild, VideoLimits
from pipelines.video.decoders import decode_frames
from pipelines.video.probe import open_video, probe_video
from pipelines.video.sampling import FrameSampling
from tests.pipelines.video.decoders import HAS_DECORD, PREFERRED

NUM = 40
KINDS = {
    "h264.mp4": ("libx264", "yuv420p"),
    "h264.avi": ("libx264", "yuv420p"),  # decord shows other frames here, without an error.
    "mpeg4.avi": ("mpeg4", "yuv420p"),
    "vp9.webm": ("libvpx-vp9", "yuv420p"),
    "mpeg2.mpg": ("mpeg2video", "yuv420p"),
    "ten_bits.mkv": ("libx264", "yuv420p10le"),
    "variable.mkv": ("libx264", "yuv420p"),
    "no_duration.mkv": ("libx264", "yuv420p"),
    "two_streams.mkv": ("libx264", "yuv420p"),
    "rotated.mp4": ("libx264", "yuv420p"),
}


def picture(i: int, width: int, height: int) -> np.ndarray:
    """Returns frame i: a bar that moves, bright at the top left, over a level of its own."""
    pixels = np.full((height, width, 3), 20 + 4 * i, dtype=np.uint8)
    pixels[: height // 4, : width // 4] = 250
    pixels[:, (i * 3) % width] = (200, 30, 30)
    return pixels


def write(path: Path, kind: str) -> Path:
    codec, pixel_format = KINDS[kind]
    options = {"live": "1"} if kind == "no_duration.mkv" else {}
    with av.open(str(path), "w", options=options) as container:
        streams = []
        for width, height in [(32, 24), (64, 48)] if kind == "two_streams.mkv" else [(64, 48)]:
            stream = container.add_stream(codec, rate=25)
            stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
            if path.suffix == ".mkv":
                stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
            streams.append(stream)
        for i in range(NUM):
            for stream in streams:
                array = picture(i, stream.width, stream.height)
                frame = av.VideoFrame.from_ndarray(array, format="rgb24")
                if path.suffix == ".mkv":
                    frame.time_base = Fraction(1, 1000)
                    gap = i * i if kind == "variable.mkv" else 40 * i
                    frame.pts = gap + 3 * i
                container.mux(stream.encode(frame))
        for stream in streams:
            container.mux(stream.encode())
    if kind == "rotated.mp4":  # A quarter turn in the track header's matrix, as telephones write.
        data = bytearray(path.read_bytes())
        turn = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 48 << 16, 0, 1 << 30)
        at = data.index(b"tkhd") + 44
        data[at : at + 36] = turn
        path.write_bytes(data)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("videos")
    return {kind: write(folder / kind, kind) for kind in KINDS}


@pytest.fixture(scope="module")
def child():
    child = VideoChild(VideoLimits(decoder="decord" if HAS_DECORD else "pyav"))
    yield child
    child.close()


def in_sequence(path: Path) -> list[tuple[float, np.ndarray]]:
    """Returns every frame of the stream players show, by time, decoded one after the other."""
    with av.open(str(path)) as container:
        stream = container.streams.best("video")
        frames = [(float(f.time), f) for f in container.decode(stream)]
    # They come in the order they are shown; AVI's times come in the order of decoding.
    times = sorted(time for time, _ in frames)
    turned = [np.rot90(f.to_ndarray(format="rgb24"), round(f.rotation / 90)) for _, f in frames]
    return [(t - times[0], p) for t, p in zip(times, turned, strict=True)]


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("preferred", PREFERRED)
def test_frames_are_those_of_decoding_in_sequence(files, kind, preferred):
    path = str(files[kind])
    frames = in_sequence(files[kind])
    assert len(frames) == NUM
    info = probe_video(path)
    times = [i * info.duration / 9 for i in range(9)]
    used, decoded_frames = decode_frames(path, info, times, preferred)
    found = list(decoded_frames)
    for requested, (decoded, pixels) in zip(times, found, strict=True):
        at, expected = [f for f in frames if f[0] <= requested + 1e-4][-1]
        assert decoded == pytest.approx(at, abs=2e-3)
        np.testing.assert_allclose(pixels.astype(int), expected, atol=0 if used == "pyav" else 2)


@pytest.mark.parametrize("kind", list(KINDS))
def test_any_window_has_its_times_recorded(files, child, kind):
    spec = ImageSpec(image_px=16, encoding="png")
    for window in ("first", "centre", "random"):
        sampling = FrameSampling(num_frames=4, stride=5, window=window, draw=0.7)
        pixels = child.sample(str(files[kind]), sampling, spec)
        assert len(pixels.images) == len(pixels.requested) == len(pixels.decoded) == 4
        shown = [t for t, _ in in_sequence(files[kind])]
        for requested, decoded in zip(pixels.requested, pixels.decoded, strict=True):
            assert decoded == pytest.approx(
                max(t for t in shown if t <= requested + 1e-4), abs=2e-3
            )
    assert pixels.requested[0] > 0


@given(num=st.integers(1, 20), stride=st.integers(1, 60), draw=st.floats(0, 0.999))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_windows_stay_inside_and_loop(num, stride, draw):
    for window in ("first", "centre", "random"):
        sampling = FrameSampling(num_frames=num, stride=stride, window=window, draw=draw)
        times = sampling.windows(1.6)[0]
        assert 1 <= len(times) <= num
        assert all(0 <= t < 1.6 for t in times)
        gaps = np.diff(times)
        np.testing.assert_allclose(gaps, stride / 25)
        order = sampling.loop(len(times))
        assert len(order) == num
        assert order == [i % len(times) for i in range(num)]


def test_rotation_turns_pixels_and_size(files, child):
    pixels = child.sample(
        str(files["rotated.mp4"]), FrameSampling(num_frames=1, stride=1), ImageSpec(image_px=64)
    )
    assert pixels.size == (48, 64)
    upright = np.asarray(Image.open(io.BytesIO(pixels.images[0])))
    assert upright[4, 60].min() > 200  # The bright corner went from the left to the right.
    assert upright[4, 4].max() < 100


def test_no_duration_is_told_by_the_packets(files):
    with open_video(str(files["no_duration.mkv"])) as container:
        assert container.duration is None
    assert probe_video(str(files["no_duration.mkv"])).duration == pytest.approx(
        NUM * 0.043, abs=0.05
    )


def test_of_several_streams_it_is_the_one_that_players_show(files):
    info = probe_video(str(files["two_streams.mkv"]))
    with av.open(str(files["two_streams.mkv"])) as container:
        best = container.streams.best("video")
        assert (info.width, info.height) == (best.width, best.height)
    assert info.num_video_streams == 2
    path = str(files["two_streams.mkv"])
    assert decode_frames(path, info, [0.0], "decord")[0] == "pyav"


@pytest.mark.slow
def test_memory_limit_holds_while_decoding(tmp_path):
    path = tmp_path / "large.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 4000, 4000, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((4000, 4000, 3), np.uint8), format="rgb24")
        for _ in range(12):
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    sampling, spec = FrameSampling(num_frames=2, stride=1), ImageSpec(image_px=16)
    child = VideoChild(VideoLimits(memory_mb=500))
    try:
        with pytest.raises(BadInput, match=r"died|[Mm]emory"):
            child.sample(str(path), FrameSampling(num_frames=16, stride=1), spec)
    except BaseException:
        child.close()
        raise
    child.close()
    generous = VideoChild(VideoLimits())
    assert len(generous.sample(str(path), sampling, spec).images) == 2
    generous.close()


@pytest.mark.slow
def test_random_windows_differ_by_file_and_seed_and_repeat_themselves(tmp_path, write_video):
    folder = tmp_path / "root/videos"
    folder.mkdir(parents=True)
    for name in "ab":
        write_video(folder / f"{name}.mp4", num_frames=50)

    def starts(out: str, seed: int) -> list[float]:
        config = PrepareConfig(
            image_px=16,
            num_workers=1,
            num_frames=2,
            frame_stride=5,
            frame_window="random",
            seed=seed,
        )
        root = str(tmp_path / "root")
        prepare_dataset(
            config, source="videos", split="train", data_root=root, out=str(tmp_path / out)
        )
        records = sorted(Dataset(tmp_path / out).records(), key=lambda r: r.id)
        return [record.frame_requested[0] for record in records]

    first = starts("x", 1)
    assert first == starts("y", 1)
    assert len({*first, *starts("z", 2)}) == 4
    assert all(0 <= start <= 4.8 for start in first)
