"""Children that are killed, stopped or slow: the same bytes or an error, never a reject."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import numpy as np
import psutil
import pytest

from pipelines.images.square import ImageSpec
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.run import prepare_dataset
from pipelines.records.dataset import DESCRIPTION, Dataset
from pipelines.records.schema import BadInput
from pipelines.video.client import SampledFrames, VideoChild, VideoChildLostError, VideoLimits
from pipelines.video.sampling import FrameSampling

SPEC = ImageSpec(image_px=16, encoding="png", antialias=False)
SAMPLING = FrameSampling(num_frames=4, stride=100)
SMALL = FrameSampling(num_frames=2, stride=5)


@pytest.fixture(scope="module")
def long_clip(tmp_path_factory) -> Path:
    """A clip that takes about a second to decode: noise in MPEG-4, decoded in sequence."""
    path = tmp_path_factory.mktemp("clips") / "long.avi"
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (8, 480, 640, 3), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 640, 480, "yuv420p"
        stream.bit_rate = 20_000_000
        for i in range(320):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pictures[i % 8])))
        container.mux(stream.encode())
    return path


@pytest.fixture(scope="module")
def undisturbed(long_clip: Path) -> SampledFrames:
    with closing(VideoChild(VideoLimits())) as child:
        return child.sample(str(long_clip), SAMPLING, SPEC)


@contextlib.contextmanager
def closing(child: VideoChild) -> Iterator[VideoChild]:
    try:
        yield child
    finally:
        child.close()


@contextlib.contextmanager
def killing(clip: Path, times: int) -> Iterator[list[int]]:
    """Kills children of this process with SIGKILL as they read a clip; yields their numbers."""
    killed: list[int] = []
    over = threading.Event()

    def hunt() -> None:
        while len(killed) < times and not over.is_set():
            for process in psutil.Process().children():
                with contextlib.suppress(psutil.Error):
                    if process.pid not in killed and any(
                        Path(file.path) == clip for file in process.open_files()
                    ):
                        process.kill()
                        killed.append(process.pid)
            time.sleep(0.005)

    hunter = threading.Thread(target=hunt)
    hunter.start()
    try:
        yield killed
    finally:
        over.set()
        hunter.join()


@contextlib.contextmanager
def loaded_machine() -> Iterator[None]:
    """Keeps every core busy, twice over."""
    burners = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * multiprocessing.cpu_count())
    ]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def cpu_time(action: Callable[[], object], child: VideoChild) -> float:
    """Returns the processor time that a running child spends on an action [s]."""
    assert child.pid is not None
    process = psutil.Process(child.pid)
    before = process.cpu_times()
    action()
    after = process.cpu_times()
    return after.user + after.system - before.user - before.system


@pytest.mark.deep
def test_a_child_killed_in_the_middle_of_a_clip_changes_nothing(
    long_clip: Path, undisturbed: SampledFrames
):
    with closing(VideoChild(VideoLimits())) as child, killing(long_clip, times=2) as killed:
        assert child.sample(str(long_clip), SAMPLING, SPEC) == undisturbed
    assert len(killed) == 2


def prepared(root: Path, out: Path) -> dict[str, bytes]:
    """Returns the files of the dataset of a folder of videos."""
    config = PrepareConfig(
        image_px=16, encoding="png", num_frames=4, frame_stride=100, num_workers=1, num_shards=2
    )
    prepare_dataset(config, source="videos", split="train", data_root=str(root), out=str(out))
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, long_clip: Path, write_video) -> Path:
    root = tmp_path_factory.mktemp("root")
    (root / "videos").mkdir()
    os.link(long_clip, root / "videos/long.avi")
    for name in "abc":
        write_video(root / f"videos/{name}.mp4")
    return root


@pytest.mark.deep
def test_a_dataset_is_the_same_whoever_kills_its_children(corpus: Path, tmp_path: Path):
    whole = prepared(corpus, tmp_path / "whole")
    with killing(corpus / "videos/long.avi", times=1) as killed:
        assert prepared(corpus, tmp_path / "disturbed") == whole
    assert len(killed) == 1
    assert Dataset(tmp_path / "whole").info.num_records == 4


@pytest.mark.deep
def test_a_shard_fails_when_its_children_are_killed_again_and_again(corpus: Path, tmp_path: Path):
    with killing(corpus / "videos/long.avi", times=99) as killed:  # noqa: SIM117
        with pytest.raises(RuntimeError, match=r"long\.avi was lost 3 times: killed by signal 9"):
            prepared(corpus, tmp_path / "out")
    assert len(killed) % 3 == 0  # Beam may try the shard again.
    assert not (tmp_path / "out" / DESCRIPTION).exists()


@pytest.mark.deep
def test_a_stopped_child_is_replaced(tmp_path: Path, write_video):
    path = str(write_video(tmp_path / "a.mp4"))
    with closing(VideoChild(VideoLimits(cpu_s=0.25))) as child:
        first = child.sample(path, SMALL, SPEC)
        stopped = child.pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        assert child.sample(path, SMALL, SPEC) == first
        assert child.pid != stopped
        assert not psutil.pid_exists(stopped)


def test_a_child_killed_between_clips_is_replaced(tmp_path: Path, write_video):
    path = str(write_video(tmp_path / "a.mp4"))
    with closing(VideoChild(VideoLimits())) as child:
        first = child.sample(path, SMALL, SPEC)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        assert child.sample(path, SMALL, SPEC) == first


@pytest.mark.deep
def test_a_hang_that_costs_no_cpu_time_is_an_error_and_no_reject(tmp_path: Path):
    pipe = tmp_path / "never.mp4"
    os.mkfifo(pipe)  # Opening it blocks for ever: there is no writer.
    with closing(VideoChild(VideoLimits(cpu_s=0.05))) as child:  # noqa: SIM117
        with pytest.raises(VideoChildLostError, match=r"never\.mp4 was lost 3 times: it stalled"):
            child.sample(str(pipe), SMALL, SPEC)


def test_a_child_that_cannot_start_is_an_error_and_no_reject(
    tmp_path: Path, write_video, monkeypatch: pytest.MonkeyPatch
):
    path = str(write_video(tmp_path / "a.mp4"))
    monkeypatch.setenv("PYTHONMALLOC", "unheard of")  # Python refuses to start.
    with closing(VideoChild(VideoLimits())) as child:  # noqa: SIM117
        with pytest.raises(VideoChildLostError, match=r"lost 3 times: it did not start"):
            child.sample(path, SMALL, SPEC)


@pytest.mark.deep
def test_cpu_time_decides_and_not_the_clock(
    long_clip: Path, undisturbed: SampledFrames, tmp_path: Path, write_video
):
    small = str(write_video(tmp_path / "a.mp4"))
    with closing(VideoChild(VideoLimits())) as child:
        child.sample(small, SMALL, SPEC)
        cost = cpu_time(lambda: child.sample(str(long_clip), SAMPLING, SPEC), child)
    reasons = []

    def sample(limit: float) -> SampledFrames:
        with closing(VideoChild(VideoLimits(cpu_s=limit))) as child:
            child.sample(small, SMALL, SPEC)
            try:
                return child.sample(str(long_clip), SAMPLING, SPEC)
            except BadInput as error:
                reasons.append(str(error))
                # The next clip is none the worse for it.
                return child.sample(small, SMALL, SPEC)

    enough, scarce = round(3 * cost, 2), round(cost / 3, 2)
    sample(scarce)
    with loaded_machine():
        began = time.monotonic()
        assert sample(enough) == undisturbed
        taken = time.monotonic() - began
        sample(scarce)
    assert reasons == [f"decoding took more than {scarce:g} s of CPU time"] * 2
    assert taken > cost  # It did share its core.


@pytest.mark.deep
def test_a_limit_met_by_a_used_child_is_tried_in_fresh_ones(
    long_clip: Path, undisturbed: SampledFrames
):
    """The address space that earlier clips left, here almost none, must not decide the outcome."""
    import resource

    with closing(VideoChild(VideoLimits())) as child:
        child.sample(str(long_clip), SAMPLING, SPEC)
        used = child.pid
        assert used is not None
        size = psutil.Process(used).memory_info().vms
        resource.prlimit(used, resource.RLIMIT_AS, (size, size))
        assert child.sample(str(long_clip), SAMPLING, SPEC) == undisturbed


def test_a_child_runs_the_code_of_its_parent_wherever_it_starts(
    tmp_path: Path, write_video, monkeypatch: pytest.MonkeyPatch
):
    path = str(write_video(tmp_path / "a.mp4"))
    for name in ("json.py", "pipelines.py"):
        (tmp_path / name).write_text("raise SystemExit('not me')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with closing(VideoChild(VideoLimits())) as child:
        assert len(child.sample(path, SMALL, SPEC).images) == 2
