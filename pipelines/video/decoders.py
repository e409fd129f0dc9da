"""Two decoders, one interface: the frame shown at each requested time, upright, in RGB.

PyAV decodes everything in sequence and is always right. decord seeks, and was index-exact only
where `choose` allows it; elsewhere it returned other frames without an error.
"""

from collections.abc import Callable, Sequence

import av
import av.error
import numpy as np

from pipelines.sources.item import BadInput
from pipelines.video.probe import OUT_OF_MEMORY, Probe, one_line, open_video, video_stream

Frame = tuple[float, np.ndarray]
"""Time from the first frame [s], pixels (H, W, 3) uint8."""

_DECORD_CODECS = ("h264", "hevc", "vp9", "libvpx-vp9")
_DECORD_FORMATS = ("mp4", "matroska", "webm")
_DECORD_PIXELS = ("yuv420p", "yuvj420p")
"""decord was up to 3.6 grey levels off on 10 bits."""

_EPSILON = 1e-4
"""Slack when comparing times of different time bases [s]."""

_LOST_SLACK = 2
_LOST_TOLERANCE = 0.05
"""More undecodable frames than this is a reject; a decoder may swallow one or two at the ends."""


def decode_pyav(path: str, info: Probe, times: Sequence[float]) -> list[Frame]:
    """Returns one frame per time, by decoding in sequence up to the last one.

    Raises:
      BadInput: if decoding fails, or ends before the file does.
    """
    found: list[Frame] = []
    shown: tuple[float, av.VideoFrame] | None = None
    start, decoded, ended = None, 0, True
    try:
        with open_video(path) as container:
            stream = video_stream(container)
            stream.codec_context.thread_count = 1
            rate = float(stream.average_rate or stream.guessed_rate or 25)
            for frame in container.decode(stream):
                stamp = _stamp(frame, info, decoded, rate)
                start = stamp if start is None else start
                while (
                    shown
                    and len(found) < len(times)
                    and stamp - start > times[len(found)] + _EPSILON
                ):
                    found.append((shown[0], _upright(shown[1])))
                if len(found) == len(times):
                    ended = False
                    break
                shown = (stamp - start, frame)
                decoded += 1
    except MemoryError as error:
        raise BadInput(OUT_OF_MEMORY) from error
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise BadInput(f"undecodable video after {decoded} frames: {one_line(error)}") from error
    if shown is None:
        raise BadInput("no frame could be decoded")
    if ended and decoded < len(info.times) * (1 - _LOST_TOLERANCE) - _LOST_SLACK:
        raise BadInput(f"truncated: {decoded} of {len(info.times)} frames could be decoded")
    while len(found) < len(times):
        found.append((shown[0], _upright(shown[1])))
    return found


def decode_decord(path: str, info: Probe, times: Sequence[float]) -> list[Frame]:
    """Returns one frame per time, by seeking; falls back on `decode_pyav` where it disagrees."""
    import decord

    wanted = np.searchsorted(info.times, np.asarray(times) + _EPSILON, side="right") - 1
    try:
        reader = decord.VideoReader(path, num_threads=1)
        if len(reader) != len(info.times):
            return decode_pyav(path, info, times)
        stamps = reader.get_frame_timestamp(range(len(reader)))[:, 0]
        shown = stamps[wanted] - stamps.min()
        if np.abs(shown - np.asarray(info.times)[wanted]).max() > 0.5 / 60:
            return decode_pyav(path, info, times)
        pixels = reader.get_batch(wanted.tolist()).asnumpy()
    except (decord.DECORDError, RuntimeError, MemoryError):
        return decode_pyav(path, info, times)
    return [(float(t), p) for t, p in zip(shown, pixels, strict=True)]


Decoder = Callable[[str, Probe, Sequence[float]], list[Frame]]
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
