"""Two decoders, one interface: the frame shown at each requested time, upright, in RGB.

PyAV decodes in sequence and is always right; of H.264 it leaves out what no wanted frame refers to.
decord seeks, and was index-exact only where `choose` allows it; elsewhere it returned other frames
without an error.
"""

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence

import av
import av.error
import numpy as np

from pipelines.records.schema import BadInput
from pipelines.video.probe import OutOfMemory, Probe, one_line, open_video, video_stream

Frame = tuple[float, np.ndarray]
"""Time from the first frame [s], pixels (H, W, 3) uint8."""

_DECORD_CODECS = ("h264", "hevc", "vp9", "libvpx-vp9")
_DECORD_FORMATS = ("mp4", "matroska", "webm")
_DECORD_PIXELS = ("yuv420p", "yuvj420p")
"""decord was up to 3.6 grey levels off on 10 bits."""

_EPSILON = 1e-4
"""Slack when comparing times of different time bases [s]."""

_THREADS = 2
"""Of one clip: 40 % less time than with one, for 3 % more of the processor's (720p, 2 cores)."""

_LOST_SLACK = 2
_LOST_TOLERANCE = 0.05
"""More undecodable frames than this is a reject; a decoder may swallow one or two at the ends."""


def decode_pyav(path: str, info: Probe, times: Sequence[float]) -> Iterator[Frame]:
    """Yields one frame per time, the times ascending, as soon as it is decoded.

    Raises:
      BadInput: if decoding fails, or ends before the file does.
    """
    num_found = 0
    if info.starts:
        try:
            for frame in _decode_needed(path, info, times):
                yield frame
                num_found += 1
        except (av.error.FFmpegError, OSError, ValueError):
            pass  # Decoding in sequence gets along with it, or says how far it came.
    if num_found < len(times):
        yield from itertools.islice(_decode_all(path, info, times), num_found, None)


def _decode_all(path: str, info: Probe, times: Sequence[float]) -> Iterator[Frame]:
    """Yields one frame per time, by decoding in sequence up to the last one."""
    shown: tuple[float, av.VideoFrame] | None = None
    start, decoded, num_found = None, 0, 0
    try:
        with open_video(path) as container:
            stream = video_stream(container)
            stream.codec_context.thread_count = 1
            rate = float(stream.average_rate or stream.guessed_rate or 25)
            for frame in container.decode(stream):
                stamp = _stamp(frame, info, decoded, rate)
                start = stamp if start is None else start
                while shown and stamp - start > times[num_found] + _EPSILON:
                    yield shown[0], _upright(shown[1])
                    num_found += 1
                    if num_found == len(times):
                        return
                shown = (stamp - start, frame)
                decoded += 1
    except MemoryError as error:
        raise OutOfMemory from error
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise BadInput(f"undecodable video after {decoded} frames: {one_line(error)}") from error
    if shown is None:
        raise BadInput("no frame could be decoded")
    if decoded < len(info.times) * (1 - _LOST_TOLERANCE) - _LOST_SLACK:
        raise BadInput(f"truncated: {decoded} of {len(info.times)} frames could be decoded")
    for _ in range(num_found, len(times)):
        yield shown[0], _upright(shown[1])


def _decode_needed(path: str, info: Probe, times: Sequence[float]) -> Iterator[Frame]:
    """Yields the frames of the first times, up to one that does not come out.

    Packets are sent from the last start before a wanted frame up to that frame, without those that
    no other refers to. They are never found by seeking, which containers' indexes lead astray.
    """
    indices = _shown_at(info, times)
    ordered = sorted(info.stamps)
    wanted = [ordered[i] for i in indices]
    number = {stamp: i for i, stamp in enumerate(info.stamps)}
    ends: dict[int, int] = {}  # First packet of a run -> its last.
    for stamp in wanted:
        start = info.starts[bisect.bisect_right(info.starts, number[stamp]) - 1]
        ends[start] = max(ends.get(start, 0), number[stamp])
    end, num_found = -1, 0
    with open_video(path) as container:
        stream = video_stream(container)
        codec = stream.codec_context
        codec.thread_count, codec.thread_type = _THREADS, "FRAME"
        codec.options = {"err_detect": "explode"}  # Threads may conceal damage in several ways.
        for i, packet in enumerate(p for p in container.demux(stream) if p.size):
            end = ends.get(i, end)
            if i > end:
                continue
            codec.skip_frame = "DEFAULT" if packet.pts in wanted else "NONREF"
            frames = codec.decode(packet)
            if i == end:
                frames += codec.decode(None)
                codec.flush_buffers()
            for frame in frames:
                while frame.pts == wanted[num_found]:
                    yield info.times[indices[num_found]], _upright(frame)
                    num_found += 1
                    if num_found == len(wanted):
                        return


def decode_decord(path: str, info: Probe, times: Sequence[float]) -> Iterator[Frame]:
    """Yields one frame per time, by seeking; falls back on `decode_pyav` where it disagrees."""
    import decord

    wanted = _shown_at(info, times)
    try:
        reader = decord.VideoReader(path, num_threads=1)
        if len(reader) != len(info.times):
            return decode_pyav(path, info, times)
        stamps = reader.get_frame_timestamp(range(len(reader)))[:, 0]
        shown = stamps[wanted] - stamps.min()
        if np.abs(shown - np.asarray(info.times)[wanted]).max() > 0.5 / 60:
            return decode_pyav(path, info, times)
        pixels = reader.get_batch(wanted).asnumpy()
    except (decord.DECORDError, RuntimeError):  # Not for want of memory: that is tried again.
        return decode_pyav(path, info, times)
    return ((float(t), p) for t, p in zip(shown, pixels, strict=True))


Decoder = Callable[[str, Probe, Sequence[float]], Iterator[Frame]]
DECODERS: dict[str, Decoder] = {"pyav": decode_pyav, "decord": decode_decord}


def choose(preferred: str, info: Probe) -> str:
    """Returns the decoder to use: decord only where it was found exact, PyAV everywhere else."""
    exact = (
        info.codec in _DECORD_CODECS
        and info.pixel_format in _DECORD_PIXELS
        and any(name in info.format.split(",") for name in _DECORD_FORMATS)
        and not info.hidden
        and info.num_video_streams == 1
    )
    return "decord" if preferred == "decord" and exact else "pyav"


def _shown_at(info: Probe, times: Sequence[float]) -> list[int]:
    """Returns which frame, in the order they are shown, is the last one not after each time."""
    return [bisect.bisect_right(info.times, time + _EPSILON) - 1 for time in times]


def _stamp(frame: av.VideoFrame, info: Probe, decoded: int, rate: float) -> float:
    """Returns when a frame is shown [s].

    Frames come out in the order they are shown. AVI keeps no such times: FFmpeg makes them up in
    the order of decoding, and frames that refer to later ones get each other's.
    """
    if info.format == "avi" and decoded < len(info.times):
        return info.times[decoded]
    return decoded / rate if frame.time is None else float(frame.time)


def _upright(frame: av.VideoFrame) -> np.ndarray:
    """Returns the pixels with the rotation of the display matrix applied, as players do."""
    pixels = frame.to_ndarray(format="rgb24")
    return np.ascontiguousarray(np.rot90(pixels, k=round(frame.rotation / 90) % 4))
