"""Two decoders, one interface: the frame shown at each requested time, upright, in RGB.

PyAV decodes in sequence and is always right; in H.264 it skips frames that no wanted frame needs.
decord seeks. Its frame indices were exact only for the files that `decode_frames` gives it; for
others it returned wrong frames without an error. Interlaced frames, odd sides and display matrices
are PyAV's as well, whichever decoder is asked for: decord's pixels are others there.
"""

import bisect
import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Any, cast

import av
import av.error
import av.sidedata.sidedata
import numpy as np
from av.container import InputContainer
from av.video.stream import VideoStream

from pipelines.records.schema import BadInput
from pipelines.video.probe import (
    OutOfMemory,
    VideoProperties,
    describe_error,
    open_video,
    video_stream,
)

Frame = tuple[float, np.ndarray]
"""Time from the first frame [s], pixels (H, W, 3) uint8; (H, W, 4) where the video has alpha."""

_DECORD_CODECS = ("h264", "hevc", "vp9", "libvpx-vp9")
_DECORD_FORMATS = ("mp4", "matroska", "webm")
_DECORD_PIXELS = ("yuv420p", "yuvj420p")
"""Containers, codecs and formats on which decord is exact; at 10 bits it was up to 3.6 grey levels
off."""

_EPSILON = 1e-4
"""Slack when comparing times of different time bases [s]."""

_THREADS = 2
"""Decoding threads of one clip. Two take 40 % less time than one, for 3 % more processor time
(720p, 2 cores)."""

_DISPLAY_MATRIX = av.sidedata.sidedata.Type.DISPLAYMATRIX
_UPRIGHT = (1.0, 0.0, 0.0, 1.0)
_SKEW = 0.02
"""Part of a display matrix that may be other than quarter turns and mirrors: a degree."""

_ALPHA_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
"""Codec -> decoder that reads the opacity of its frames; FFmpeg's own leaves it out."""

_KEY_FRAMES = 16
"""Key frames that are looked at before decord is asked; a clip of some seconds has fewer."""

_NO_MEMORY = ("failed to map segment", "annot allocate memory")
"""The loader's words where the address space is too small for a library."""

_LOST_SLACK = 2
_LOST_TOLERANCE = 0.05
"""A clip with more undecodable frames than this is rejected; decoders may drop one or two at the
ends."""


class DecordError(ImportError):
    """decord is installed, and cannot be imported."""


def decode_pyav(path: str, info: VideoProperties, times: Sequence[float]) -> Iterator[Frame]:
    """Yields one frame per time, as soon as it is decoded; `times` must ascend.

    Raises:
      BadInput: if decoding fails, or ends before the file does.
    """
    num_decoded = 0
    if info.starts:
        try:
            for frame in _decode_needed(path, info, times):
                yield frame
                num_decoded += 1
        except (av.error.FFmpegError, OSError, ValueError):
            pass  # `_decode_in_sequence` below may still succeed, or reports how far it came.
    if num_decoded < len(times):
        yield from itertools.islice(_decode_in_sequence(path, info, times), num_decoded, None)


def _decode_in_sequence(
    path: str, info: VideoProperties, times: Sequence[float]
) -> Iterator[Frame]:
    """Yields one frame per time, by decoding in sequence up to the last time."""
    shown_frame: tuple[float, av.VideoFrame] | None = None
    start, decoded, num_decoded = None, 0, 0
    try:
        with open_video(path) as container:
            stream = video_stream(container)
            stream.codec_context.thread_count = 1
            # Used for frames without a time of their own.
            rate = float(stream.average_rate or stream.guessed_rate or 25)
            # A frame is shown until the next one begins, so `shown_frame` is yielded for every
            # requested time before the next frame's time.
            for frame in _decoded_frames(container, stream):
                stamp = _display_time(frame, info, decoded, rate)
                start = stamp if start is None else start
                while shown_frame and stamp - start > times[num_decoded] + _EPSILON:
                    yield shown_frame[0], _upright_pixels(shown_frame[1], info.pixel_ratio)
                    num_decoded += 1
                    if num_decoded == len(times):
                        return
                shown_frame = (stamp - start, frame)
                decoded += 1
    # FFmpeg says "try again" where it cannot start a thread, whose stack needs memory.
    except (MemoryError, av.error.BlockingIOError) as error:
        raise OutOfMemory from error
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise BadInput(
            f"undecodable video after {decoded} frames: {describe_error(error)}"
        ) from error
    if shown_frame is None:
        raise BadInput("no frame could be decoded")
    if decoded < len(info.times) * (1 - _LOST_TOLERANCE) - _LOST_SLACK:
        raise BadInput(f"truncated: {decoded} of {len(info.times)} frames could be decoded")
    # A clip's last frame is shown to its end: it is the answer to all times that are left.
    for _ in range(num_decoded, len(times)):
        yield shown_frame[0], _upright_pixels(shown_frame[1], info.pixel_ratio)


def _decoded_frames(container: InputContainer, stream: VideoStream) -> Iterator[av.VideoFrame]:
    """Yields a stream's frames in display order, with their transparency."""
    if not _has_alpha_apart(stream):
        yield from container.decode(stream)
        return
    decoder = av.CodecContext.create(_ALPHA_DECODERS[stream.codec_context.name], "r")
    for packet in container.demux(stream):
        yield from cast(Any, decoder).decode(packet)


def _has_alpha_apart(stream: VideoStream) -> bool:
    """Returns whether opacity is a second picture beside each frame, as WebM has it."""
    is_known = stream.codec_context.name in _ALPHA_DECODERS
    return is_known and stream.metadata.get("alpha_mode") == "1"


def _decode_needed(path: str, info: VideoProperties, times: Sequence[float]) -> Iterator[Frame]:
    """Yields the frames for as many of the times, from the first, as can be decoded.

    It decodes the packets from the last start before a wanted frame up to that frame, and skips
    frames that no other frame refers to. It reads packets in sequence and never seeks, since
    containers' indexes may be wrong.
    """
    # Packets in decoding order, starts at 0 and 8, packets 5 and 9 wanted:
    #
    #   packet   0 1 2 3 4 5 6 7 8 9 10 11
    #   decoded  ■ ■ ■ ■ ■ ■     ■ ■            runs {0: 5, 8: 9}
    indices = _frames_shown_at(info, times)
    ordered = sorted(info.stamps)
    stamps = [ordered[i] for i in indices]
    number = {stamp: i for i, stamp in enumerate(info.stamps)}
    ends: dict[int, int] = {}  # First packet of a run -> its last.
    for stamp in stamps:
        start = info.starts[bisect.bisect_right(info.starts, number[stamp]) - 1]
        ends[start] = max(ends.get(start, 0), number[stamp])
    end, num_decoded = -1, 0
    with open_video(path) as container:
        stream = video_stream(container)
        codec = stream.codec_context
        codec.thread_count, codec.thread_type = _THREADS, "FRAME"
        # Fail on damage: how a decoder conceals it may depend on its threads.
        codec.options = {"err_detect": "explode"}
        for i, packet in enumerate(p for p in container.demux(stream) if p.size):
            end = ends.get(i, end)
            # Between two runs, packets are read and dropped.
            if i > end:
                continue
            # A frame that no other refers to is decoded only if it is wanted.
            codec.skip_frame = "DEFAULT" if packet.pts in stamps else "NONREF"
            frames = codec.decode(packet)
            if i == end:  # Drain the frames that the decoder holds back, then start afresh.
                frames += codec.decode(None)
                codec.flush_buffers()
            for frame in frames:
                while frame.pts == stamps[num_decoded]:
                    yield info.times[indices[num_decoded]], _upright_pixels(frame, info.pixel_ratio)
                    num_decoded += 1
                    if num_decoded == len(stamps):
                        return


def decode_decord(
    path: str, info: VideoProperties, times: Sequence[float]
) -> Iterator[Frame] | None:
    """Returns one frame per time, by seeking; None if decord disagrees with `info`, or fails.

    Raises:
      DecordError: if decord cannot be imported.
    """
    try:
        import decord
    except (ImportError, OSError) as error:
        if any(words in str(error) for words in _NO_MEMORY):
            raise OutOfMemory from error
        raise DecordError(str(error)) from error

    # Four checks before decord is believed: key frames are stored as they are shown, and decord
    # counts as many frames as the probe, shows them at the same times, and raises nothing.
    indices = _frames_shown_at(info, times)
    try:
        if not _is_plain(path):
            return None
        reader = decord.VideoReader(path, num_threads=1)
        if len(reader) != len(info.times):
            return None
        stamps = reader.get_frame_timestamp(range(len(reader)))[:, 0]
        shown_times = stamps[indices] - stamps.min()
        if np.abs(shown_times - np.asarray(info.times)[indices]).max() > 0.5 / 60:
            return None
        pixels = reader.get_batch(indices).asnumpy()
    except (
        decord.DECORDError,
        RuntimeError,
        av.error.FFmpegError,
    ):  # MemoryError passes, so that it is tried again.
        return None
    return ((float(t), p) for t, p in zip(shown_times, pixels, strict=True))


def decode_frames(
    path: str, info: VideoProperties, times: Sequence[float], preferred: str
) -> tuple[str, Iterator[Frame]]:
    """Returns the name of the decoder that takes a video, and one frame per time.

    Args:
      path: the video.
      info: what `probe_video` found in it.
      times: times from the first frame, ascending [s].
      preferred: "pyav", or "decord" to use it where it is exact, and PyAV elsewhere.

    Raises:
      BadInput: from the frames, if decoding fails, or ends before the file does.
      DecordError: if decord is wanted and cannot be imported.
    """
    if preferred == "decord" and _is_exact_in_decord(info):
        frames = decode_decord(path, info, times)
        if frames is not None:
            return "decord", frames
    return "pyav", decode_pyav(path, info, times)


def _is_exact_in_decord(info: VideoProperties) -> bool:
    return (
        info.codec in _DECORD_CODECS
        and info.pixel_format in _DECORD_PIXELS
        and any(name in info.format.split(",") for name in _DECORD_FORMATS)
        and info.can_seek
        and not info.hidden
        and info.num_video_streams == 1
        and info.width % 2 == info.height % 2 == 0
        and info.pixel_ratio == 1
    )


def _is_plain(path: str) -> bool:
    """Returns whether key frames are progressive, and shown as they are stored."""
    with open_video(path) as container:
        stream = video_stream(container)
        stream.codec_context.skip_frame = "NONKEY"
        key_frames = itertools.islice(container.decode(stream), _KEY_FRAMES)
        return not _has_alpha_apart(stream) and all(
            not frame.interlaced_frame and display_matrix(frame) == _UPRIGHT for frame in key_frames
        )


def _frames_shown_at(info: VideoProperties, times: Sequence[float]) -> list[int]:
    """Returns, for each time, the index in display order of the frame shown at that time."""
    return [bisect.bisect_right(info.times, time + _EPSILON) - 1 for time in times]


def _display_time(frame: av.VideoFrame, info: VideoProperties, decoded: int, rate: float) -> float:
    """Returns the time at which a frame is shown [s].

    Decoders return frames in display order. AVI stores no display times: FFmpeg invents them in
    decoding order, so B-frames get each other's times. There, the n-th frame gets the n-th time.
    """
    if info.format == "avi" and decoded < len(info.times):
        return info.times[decoded]
    return decoded / rate if frame.time is None else float(frame.time)


def display_size(width: int, height: int, ratio: float) -> tuple[int, int]:
    """Returns the size of a frame whose pixels are made square, no side shorter [pixels]."""
    return round(width * max(ratio, 1)), round(height / min(ratio, 1))


def _upright_pixels(frame: av.VideoFrame, ratio: float) -> np.ndarray:
    """Returns the pixels as players show them, square, turned and mirrored by the display matrix.

    Raises:
      BadInput: if the matrix turns by anything but quarter turns.
    """
    has_alpha = any(component.is_alpha for component in frame.format.components)
    width, height = display_size(frame.width, frame.height, ratio)
    pixels = frame.to_ndarray(format="rgba" if has_alpha else "rgb24", width=width, height=height)
    a, b, c, d = display_matrix(frame)
    # The pixel at (x, y) is shown at (a x + c y, b x + d y):
    #
    #   1 0 0 1    as stored             -1 0 0 1    left and right change places
    #   0 1 -1 0   a quarter clockwise    0 1 1 0    rows and columns change places
    if max(abs(b), abs(c)) > max(abs(a), abs(d)):
        pixels, across, down, rest = pixels.swapaxes(0, 1), c, b, (a, d)
    else:
        across, down, rest = a, d, (b, c)
    if max(map(abs, rest)) > _SKEW * min(abs(across), abs(down)):
        raise BadInput(
            f"display matrix {a:g} {b:g} {c:g} {d:g} is none of quarter turns and mirrors; encode "
            f"the video upright"
        )
    pixels = pixels[:: -1 if down < 0 else 1, :: -1 if across < 0 else 1]
    return np.ascontiguousarray(pixels)


def display_matrix(frame: av.VideoFrame) -> tuple[float, float, float, float]:
    """Returns a, b, c, d of a frame's display matrix, by which (x, y) is (a x + c y, b x + d y).

    Source: ISO 14496-12, 6.2.2: a b u, c d v, x y w, where u, v and w have 30 binary places and the
    others 16.
    """
    side_data: Any = frame.side_data  # Its stubs take it for a mapping of texts.
    data = next((d for d in side_data if d.type == _DISPLAY_MATRIX), None)
    if data is None:
        return _UPRIGHT
    a, b, _, c, d, *_ = (value / 2**16 for value in struct.unpack("=9i", bytes(data)[:36]))
    return (a, b, c, d) if any((a, b, c, d)) else _UPRIGHT  # FFmpeg passes over a matrix of zeros.
