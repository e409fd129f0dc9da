"""decord decodes what it is exact on, PyAV the rest, file by file; the dataset counts them."""

import importlib.util
import json
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.run import prepare_dataset
from pipelines.records.dataset import Dataset
from pipelines.records.holdings import count_holdings
from pipelines.video.decoders import decode_frames
from pipelines.video.probe import probe_video
from tests.pipelines.video.decoders import needs_decord
from tests.pipelines.video.test_exact_frames import EDITS, with_edits
from tests.pipelines.video.test_frames import in_sequence, picture

NUM, WIDTH, HEIGHT, FPS = 56, 64, 48, 25
X264, X265 = "x264-params", "x265-params"
CLOSED, OPEN = "keyint=10:min-keyint=10:bframes=4:scenecut=0:open-gop=0", "keyint=10:open-gop=1"
QUIET = ":log-level=none"

FILES: dict[str, tuple[str, str, dict[str, str]]] = {
    "closed.mp4": ("decord", "libx264", {X264: CLOSED}),
    "closed.mkv": ("decord", "libx264", {X264: CLOSED}),
    "defaults.mp4": ("decord", "libx264", {}),
    "hevc_closed.mp4": ("decord", "libx265", {X265: CLOSED + QUIET}),
    "vp9.webm": ("decord", "libvpx-vp9", {"g": "12"}),
    "vp9.mkv": ("decord", "libvpx-vp9", {"g": "12"}),
    # Seeking into an open group shows other frames, or grey ones, without an error.
    "open.mp4": ("pyav", "libx264", {X264: f"{OPEN}:bframes=3:scenecut=0"}),
    "hevc_open.mp4": ("pyav", "libx265", {X265: f"{OPEN}:bframes=4{QUIET}"}),
    "hevc_open.mkv": ("pyav", "libx265", {X265: f"{OPEN}:bframes=4{QUIET}"}),
    "h264.avi": ("pyav", "libx264", {}),
    "mpeg4.avi": ("pyav", "mpeg4", {"qscale": "2"}),
    "mpeg2.mpg": ("pyav", "mpeg2video", {"qscale": "2"}),
    "wmv2.wmv": ("pyav", "wmv2", {"qscale": "2"}),
    "h264.ts": ("pyav", "libx264", {X264: CLOSED}),
    "vp8.webm": ("pyav", "libvpx", {"b": "2M"}),
    "edits.mp4": ("pyav", "libx264", {X264: "bframes=3:keyint=12:min-keyint=12:scenecut=0"}),
}
"""File -> the decoder that takes it where decord is wanted, its codec and the codec's options."""


def write(path: Path) -> Path:
    """Writes a clip whose frame i is `picture(i)`."""
    _, codec, options = FILES[path.name]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=FPS)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.options = options
        for i in range(NUM):
            frame = av.VideoFrame.from_ndarray(picture(i, WIDTH, HEIGHT), format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    if path.name == "edits.mp4":
        with_edits(path, *EDITS["leading frames are hidden"][0])
    return path


@needs_decord
@pytest.mark.parametrize("name", list(FILES))
def test_each_file_has_its_decoder_and_every_frame_is_right(tmp_path: Path, name: str):
    path = str(write(tmp_path / name))
    info = probe_video(path)
    assert decode_frames(path, info, [0.0], "pyav")[0] == "pyav"
    expected = [pixels for _, pixels in in_sequence(tmp_path / name)]
    num = len(expected)
    assert num == len(info.times) == (NUM - 7 if name == "edits.mp4" else NUM)
    rng = np.random.default_rng(0)
    # Every frame alone, and some together: where decord seeks to depends on what it was asked for.
    asked = [[i] for i in range(num)] + [sorted(rng.integers(0, num, 4).tolist()) for _ in range(9)]
    for indices in asked:
        used, frames = decode_frames(path, info, [info.times[i] for i in indices], "decord")
        assert used == FILES[name][0]
        for i, (_, pixels) in zip(indices, frames, strict=True):
            np.testing.assert_allclose(pixels.astype(int), expected[i], atol=2)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "root" / "videos"
    folder.mkdir(parents=True)
    for name in ("closed.mp4", "vp9.webm", "h264.avi", "mpeg2.mpg", "hevc_open.mkv"):
        write(folder / name)
    return tmp_path / "root"


def prepare(corpus: Path, out: Path, decoder: str) -> Dataset:
    config = PrepareConfig(
        image_px=16, num_workers=1, num_shards=2, num_frames=2, frame_stride=5, decoder=decoder
    )
    prepare_dataset(config, source="videos", split="train", data_root=str(corpus), out=str(out))
    return Dataset(out)


@pytest.mark.slow
def test_the_dataset_counts_which_decoder_took_its_clips(corpus: Path, tmp_path: Path, monkeypatch):
    wanted = {"decord": 2, "pyav": 3} if importlib.util.find_spec("decord") else {"pyav": 5}
    dataset = prepare(corpus, tmp_path / "a", "decord")
    assert dataset.info.decoders == count_holdings(dataset).decoders == wanted
    reports = json.loads((tmp_path / "a" / "shards.json").read_text())
    assert sum(num for report in reports for num in report["decoders"].values()) == 5
    # Where PyAV is asked for, files are as they were before there was a choice.
    plain = prepare(corpus, tmp_path / "b", "pyav")
    for name in ("dataset.json", "shards.json"):
        assert "decoders" not in (tmp_path / "b" / name).read_text()
    # Without decord, as on ARM, PyAV decodes all, and the dataset says so.
    monkeypatch.setitem(sys.modules, "decord", None)
    fallen_back = prepare(corpus, tmp_path / "c", "decord")
    assert fallen_back.info.decoders == {"pyav": 5}
    assert [*fallen_back.records()] == [*plain.records()]


@needs_decord
@pytest.mark.slow
def test_a_decord_that_cannot_be_imported_fails_the_run_and_rejects_no_clip(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "decord.py").write_text(
        "raise ImportError('libdecord.so: no such file')"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "broken"))
    with pytest.raises(RuntimeError, match=r"decord is installed and cannot be imported .*no such"):
        prepare(corpus, tmp_path / "out", "decord")
