"""Sampling a clip's frames as preparation does, against bare loops over PyAV and decord.

    python -m perf.video

The clips are H.264 of 1280x720 with moving textures and noise, 30 s long. A bare loop opens a file,
takes the frames and squashes them; ours also checks for damage and encodes the frames, in a child
process, whose processor time counts, too. Processor time is what other load affects least. Frames
are right if they equal those from decoding everything in sequence. The memory is the most that one
process had resident over many clips.
"""

import argparse
import functools
import io
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import av
import numpy as np
from PIL import Image

from perf.timing import table, take_turns
from pipelines.images.square import ImageSpec, squash
from pipelines.video.client import VideoChild, VideoLimits
from pipelines.video.sampling import FrameSampling

FPS = 25
CASES = ((250, 46), (250, 26), (60, 46), (60, 26), (60, 9))
"""Frames between key frames, stride; 16 frames at 46 span the whole clip, at 9 its first 5 s."""

SPEC = ImageSpec(antialias=False)

Loop = Callable[[str, FrameSampling, int], list[np.ndarray]]
"""Path, sampling and number of threads (0: the library's choice) -> squashed frames."""


def write_clip(path: Path, *, seconds: int, key_frames: int, width: int, height: int) -> Path:
    """Writes a clip of a moving texture under noise, with B frames."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 200, (height // 8 + 40, width // 8 + 40, 3), dtype=np.uint8)
    texture = np.asarray(
        Image.fromarray(blocks).resize((width + 320, height + 320), Image.Resampling.BICUBIC)
    )
    noise = rng.integers(0, 6, (4, height, width, 1), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"preset": "fast", "crf": "26", "g": str(key_frames), "bf": "3"}
        for i in range(seconds * FPS):
            left, top = 3 * i % 320, 2 * i % 320
            pixels = texture[top : top + height, left : left + width] + noise[i % 4]
            side = height // 4
            pixels[side : 2 * side, 7 * i % (width - side) :][:, :side] = i % 250
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return path


def times_of(sampling: FrameSampling, duration: float) -> list[float]:
    """Returns the times of the wanted frames, the same for all loops [s]."""
    return [t + 1e-4 for t in sampling.windows(duration)[0]]


def pyav_in_sequence(path: str, sampling: FrameSampling, threads: int) -> list[np.ndarray]:
    """Decodes all frames from the first to the last one that is wanted."""
    found: list[np.ndarray] = []
    with av.open(path) as container:
        stream = _stream(container, threads)
        times = times_of(sampling, stream.frames / FPS)
        frames = container.decode(stream)
        shown = next(frames)
        for frame in frames:
            while len(found) < len(times) and frame.time > times[len(found)]:
                found.append(_small(shown))
            if len(found) == len(times):
                return found
            shown = frame
        return found + [_small(shown)] * (len(times) - len(found))


def pyav_seeking(path: str, sampling: FrameSampling, threads: int) -> list[np.ndarray]:
    """Seeks to the key frame before each wanted frame, and decodes from there."""
    found = []
    with av.open(path) as container:
        stream = _stream(container, threads)
        for time in times_of(sampling, stream.frames / FPS):
            container.seek(int(time / (stream.time_base or 1)), stream=stream)
            frames = container.decode(stream)
            shown = next(frames)
            for frame in frames:
                if frame.time > time:
                    break
                shown = frame
            found.append(_small(shown))
    return found


def decord_batch(path: str, sampling: FrameSampling, threads: int) -> list[np.ndarray]:
    """Has decord find and decode the wanted frames."""
    import decord

    reader = decord.VideoReader(path, num_threads=threads)
    indices = [int(t * FPS) for t in times_of(sampling, len(reader) / FPS)]
    return [_squashed(pixels) for pixels in reader.get_batch(indices).asnumpy()]


LOOPS: dict[str, tuple[Loop, int]] = {
    "PyAV": (pyav_in_sequence, 1),
    "PyAV, seeking": (pyav_seeking, 1),
    "decord": (decord_batch, 1),
    "PyAV, its threads": (pyav_in_sequence, 0),
    "decord, its threads": (decord_batch, 0),
}
"""Name -> the loop, and its number of threads."""


def _stream(container, threads: int):
    stream = container.streams.video[0]
    stream.thread_type, stream.codec_context.thread_count = "AUTO", threads
    return stream


def _small(frame: av.VideoFrame) -> np.ndarray:
    return _squashed(frame.to_ndarray(format="rgb24"))


def _squashed(pixels: np.ndarray) -> np.ndarray:
    return np.asarray(squash(Image.fromarray(pixels), SPEC))


def measure(path: Path, label: str, sampling: FrameSampling, rounds: int) -> list[list[str]]:
    """Returns the rows of one case: times, how many frames are right, times over ours."""
    file = str(path)
    child = VideoChild(VideoLimits())
    programs: dict[str, Callable[[], object]] = {
        name: functools.partial(loop, file, sampling, threads)
        for name, (loop, threads) in LOOPS.items()
    }
    used: list[float] = []

    def ours() -> None:
        before = _cpu(child.pid)
        child.sample(file, sampling, SPEC)
        used.append(_cpu(child.pid) - before)

    programs["ours"] = ours
    timings = take_turns(programs, rounds)
    cpus = {name: timing.cpu for name, timing in timings.items()}
    # Processor time of the child process; as in `take_turns`, the first run does not count.
    cpus["ours"] += statistics.median(used[1:])
    exact = pyav_in_sequence(file, sampling, 1)
    pixels = child.sample(file, sampling, ImageSpec(antialias=False, encoding="png"))
    child.close()
    frames = {name: loop(file, sampling, threads) for name, (loop, threads) in LOOPS.items()}
    frames["ours"] = [np.asarray(Image.open(io.BytesIO(image))) for image in pixels.images]
    rows = []
    for name, found in frames.items():
        right = sum(np.array_equal(a, b) for a, b in zip(found, exact, strict=False))
        rows.append(
            [
                label,
                name,
                f"{1000 * timings[name].wall:.0f}",
                f"{timings[name].noise:.0%}",
                f"{1000 * cpus[name]:.0f}",
                f"{right} of {len(exact)}",
                f"{timings[name].wall / timings['ours'].wall:.2f}",
                f"{cpus[name] / cpus['ours']:.2f}",
            ]
        )
    return rows


def peak_memory(path: Path, sampling: FrameSampling, num_clips: int) -> list[list[str]]:
    """Returns the rows of the second table: the most resident memory of a process [MiB]."""
    rows = []
    spawn = multiprocessing.get_context("spawn")
    for name in ("PyAV", "decord"):
        with spawn.Pool(1) as pool:
            rows.append([name, str(pool.apply(_grow, (name, str(path), sampling, num_clips)))])
    child = VideoChild(VideoLimits())
    for _ in range(num_clips):
        child.sample(str(path), sampling, SPEC)
    rows.append(["ours", str(_peak(child.pid))])
    child.close()
    return rows


def _grow(name: str, path: str, sampling: FrameSampling, num_clips: int) -> int:
    loop, threads = LOOPS[name]
    for _ in range(num_clips):
        loop(path, sampling, threads)
    return _peak("self")


def _cpu(process: int | None) -> float:
    """Returns the processor time of a process so far [s]; 0 if there is none yet."""
    if process is None:
        return 0.0
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak(process: int | str | None) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) >> 10


HEADER = ["key frames, stride", "loop", "ms", "noise", "CPU ms", "right", "ms/ours", "CPU/ours"]


def main(words: Sequence[str] | None = None) -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="counted runs of each loop")
    parser.add_argument("--seconds", type=int, default=30, help="length of the clips")
    parser.add_argument("--height", type=int, default=720, help="of the clips [pixels]")
    parser.add_argument("--clips", type=int, default=200, help="of the memory's measurement")
    args = parser.parse_args(words)
    rows, clips = [], {}
    with tempfile.TemporaryDirectory() as folder:
        size = {"seconds": args.seconds, "width": args.height * 8 // 9 * 2, "height": args.height}
        for key_frames in dict.fromkeys(number for number, _ in CASES):
            path = Path(folder) / f"{key_frames}.mp4"
            clips[key_frames] = write_clip(path, key_frames=key_frames, **size)
        for key_frames, stride in CASES:
            sampling = FrameSampling(num_frames=16, stride=stride)
            label = f"{key_frames}, {stride}"
            rows += measure(clips[key_frames], label, sampling, args.rounds)
        print(table(HEADER, rows), flush=True)
        key_frames, stride = CASES[-1]
        sampling = FrameSampling(num_frames=16, stride=stride)
        grown = peak_memory(clips[key_frames], sampling, args.clips)
    print()
    print(table([f"{args.clips} clips", "peak MiB"], grown))


if __name__ == "__main__":
    main()
