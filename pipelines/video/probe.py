"""Reads a video file's declared properties and its packets, without decoding."""

import dataclasses
import itertools
from typing import Any

import av
import av.error
import av.stream
from av.container import InputContainer
from av.video.stream import VideoStream

from pipelines.records.reasons import reason_of
from pipelines.records.schema import BadInput

FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,mpegvideo,flv,asf,ogg,ivf,gif,apng,"
    "rm,dv,m4v,h264,hevc,mp3,wav,flac,aac"
)
"""Containers that may be opened. Others (concat, hls, ...) name further files or URLs to open, and
a corpus must not choose what is read. Audio formats are allowed so that the reject can say that
there is no video stream."""

_COUNT_SLACK = 2
_COUNT_TOLERANCE = 0.02
"""A file that lacks more of its declared frames than this is truncated. Whole files of the sample
corpus are exact; encoders that drop the last frames lack one or two."""

_DURATION_SLACK = 1.0
_DURATION_TOLERANCE = 0.1
"""The same for durations [s, fraction]."""

_MATROSKA = "matroska"

_IDR = 5
"""Type number of an IDR unit. Source: ITU-T H.264, table 7-1; ISO 14496-15, 5.3.3 for
`_length_size`."""


class OutOfMemory(BadInput):
    """The address space was too small for this clip, perhaps because of earlier clips."""

    def __init__(self) -> None:
        super().__init__("out of memory while decoding")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VideoProperties:
    """Properties of one video.

    Attributes:
      format: names of the container, comma-separated.
      codec: codec of the chosen video stream.
      pixel_format: ffmpeg's name of the pixel format, for example "yuv420p".
      width: width before rotation [pixels].
      height: height before rotation [pixels].
      pixel_ratio: width of a pixel as it is shown, by its height; before rotation.
      times: time at which each packet is shown, ascending, from the first one [s].
      duration: duration of the packets that are present [s].
      hidden: packets that an edit list hides.
      num_video_streams: number of video streams without cover pictures.
      stamps: stamp of every packet, in decoding order [time base]; empty if `starts` is.
      starts: packets at which decoding can begin without the packets before, including packet 0.
        Empty if they are not known, or if stamps do not identify frames.
      can_seek: whether decoding can begin at every packet that the file marks as a key frame.
    """

    format: str
    codec: str
    pixel_format: str
    width: int
    height: int
    pixel_ratio: float
    times: tuple[float, ...]
    duration: float
    hidden: int
    num_video_streams: int
    stamps: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    can_seek: bool = False


def probe_video(path: str) -> VideoProperties:
    """Returns the properties of a video file.

    Raises:
      BadInput: if it holds no video, or less than it declares.
    """
    try:
        with open_video(path) as container:
            stream = video_stream(container)
            return _probe_stream(container, stream)
    except (MemoryError, av.error.BlockingIOError) as error:  # As in `decode_pyav`.
        raise OutOfMemory from error
    except (av.error.FFmpegError, OSError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"unreadable video: {describe_error(error)}") from error


def open_video(path: str) -> InputContainer:
    """Returns the opened file; FFmpeg refuses containers that name other files."""
    options = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
    return av.open(path, options=options)


def video_stream(container: InputContainer) -> VideoStream:
    """Returns the video stream that ffmpeg would play; cover pictures do not count."""
    streams = _video_streams(container)
    if not streams:
        kinds = sorted({s.type for s in container.streams}) or ["nothing"]
        raise BadInput(f"no video stream, only {', '.join(kinds)}")
    best = container.streams.best("video")
    return best if best in streams else streams[0]  # type: ignore[return-value]


def describe_error(error: BaseException) -> str:
    """Returns an error's text without the file name, so that it does not depend on the path."""
    return reason_of(error)


def _video_streams(container: InputContainer) -> list[VideoStream]:
    cover = av.stream.Disposition.attached_pic
    return [s for s in container.streams.video if not s.disposition & cover]


def _probe_stream(container: InputContainer, stream: VideoStream) -> VideoProperties:
    rate = float(stream.average_rate or stream.guessed_rate or 25)
    base = float(stream.time_base) if stream.time_base else 0.0
    # One pass over the packets, without decoding, collects when each frame is shown, which packets
    # an edit list hides, and at which packets decoding may begin.
    times, ends, hidden, dts, latest = [], [], 0, None, 0.0
    stamps, starts, keys, length = [], [], [], _length_size(stream)
    for packet in container.demux(stream):
        if not packet.size:
            continue
        if packet.is_discard:
            hidden += 1
            continue
        stamp = packet.pts if packet.pts is not None else packet.dts
        # Sorted, the frames of joined files would lie on each other. Decoding times alone may go
        # back, where a part has more B-frames; below a file's first stamp FFmpeg adds 26.5 hours.
        step = 0 if packet.dts is None or dts is None else (packet.dts - dts) * base
        # A key frame is shown after all that came before it, however decoding times go on.
        is_key = packet.is_keyframe and stamp is not None and len(times) > 0
        back = max(-step, latest - (stamp or 0) * base if is_key else 0.0)
        if step > 12 * 3600 or (back >= 0.5 / rate and (stamp or 0) * base <= latest):
            number = len(times) + hidden + 1
            raise BadInput(f"stamps begin again at packet {number}: several files in one; remux it")
        dts = dts if packet.dts is None else packet.dts
        times.append(len(times) / rate if stamp is None else stamp * base)
        latest = max(latest, times[-1]) if times[1:] else times[0]
        ends.append(times[-1] + (packet.duration or 0) * base)
        if packet.is_keyframe:
            keys.append(len(stamps))
        if length and packet.is_keyframe and _is_idr(bytes(packet), length):
            starts.append(len(stamps))
        # New headers in the middle of the stream: from here on, starts cannot be told any more.
        if packet.has_sidedata("new_extradata"):
            length = 0
        stamps.append(packet.pts)
    if not times:
        raise BadInput("no video packets")
    # Packets come in decoding order; B-frames are shown in another.
    #
    #   decoding order  I0 P3 B1 B2      shown at  0 3 1 2  ─▶  sorted  0 1 2 3
    times.sort()
    # The last frame is shown for as long as its packet says, and for one interval at least.
    duration = max(max(ends), times[-1] + 1 / rate) - times[0]
    _check_complete(container, stream, len(times) + hidden, duration)
    codec = stream.codec_context
    can_seek = _has_closed_groups(stamps, keys) and (codec.name != "h264" or keys == starts)
    # Where stamps do not tell frames apart, decoding goes through all of them.
    if not length or hidden or not _are_stamps_unique(stamps, starts):
        stamps, starts = [], []
    return VideoProperties(
        format=container.format.name,
        codec=codec.name,
        pixel_format=str(codec.pix_fmt),
        width=codec.width,
        height=codec.height,
        pixel_ratio=float(stream.sample_aspect_ratio or 1),  # The container's, else the codec's.
        times=tuple(t - times[0] for t in times),
        duration=duration,
        hidden=hidden,
        num_video_streams=len(_video_streams(container)),
        stamps=tuple(stamps),
        starts=tuple(starts),
        can_seek=can_seek,
    )


def _has_closed_groups(stamps: list[int | None], keys: list[int]) -> bool:
    """Returns whether packet 0 is a key frame, and no packet after one is shown before it.

    Such a packet may refer past the key frame, as in the open groups of H.264 and HEVC.
    """
    # closed  I0 P2 B1 │ I3 P5 B4           open  I0 P3 B1 B2 │ I6 B4 B5 P9 …
    if keys[:1] != [0] or None in stamps:
        return False
    shown: list[Any] = stamps
    earliest_after = [*itertools.accumulate(reversed(shown), min)][::-1]
    return all(shown[key] <= earliest_after[key] for key in keys)


def _are_stamps_unique(stamps: list[int | None], starts: list[int]) -> bool:
    """Returns whether stamps identify frames, and packet 0 is both a start and shown first."""
    if starts[:1] != [0] or None in stamps or len(set(stamps)) < len(stamps):
        return False
    return all(stamps[0] <= stamp for stamp in stamps)  # type: ignore[operator]


def _length_size(stream: VideoStream) -> int:
    """Returns the size of the length field before each H.264 unit [bytes]; 0 if there is none."""
    extra = stream.codec_context.extradata or b""
    if stream.codec_context.name != "h264" or len(extra) < 7 or extra[0] != 1:
        return 0
    return (extra[4] & 3) + 1


def _is_idr(data: bytes, length: int) -> bool:
    """Returns whether a packet is an IDR picture: no later picture refers to an earlier one.

    A container's key-frame flag is not enough: later pictures may refer past such a frame.
    """
    # length | unit | length | unit …   The low 5 bits of a unit's first byte are its type.
    at = 0
    while at + length < len(data):
        if data[at + length] & 31 == _IDR:
            return True
        at += length + int.from_bytes(data[at : at + length])
    return False


def _check_complete(
    container: InputContainer, stream: VideoStream, present: int, duration: float
) -> None:
    """Refuses files with fewer frames or seconds than declared; FFmpeg reads them without error."""
    # A download that broke off still opens and plays; only its header says that more was meant.
    declared, stream_seconds = stream.frames, 0.0
    # Matroska states no length of a stream; for a clip of one or two frames, FFmpeg gives the
    # file's, which is the time of its end.
    if stream.duration and stream.time_base and _MATROSKA not in container.format.name:
        stream_seconds = float(stream.duration * stream.time_base)
    # Packets after the end of an edit list are left out, but its duration is the stream's.
    frame = 1 / float(stream.average_rate or stream.guessed_rate or 25)
    is_whole = (
        stream_seconds
        and duration >= stream_seconds * (1 - _COUNT_TOLERANCE) - _COUNT_SLACK * frame
    )
    if present < declared * (1 - _COUNT_TOLERANCE) - _COUNT_SLACK and not is_whole:
        raise BadInput(f"truncated: {present} of {declared} declared frames are present")
    seconds = stream_seconds
    if not declared and not stream_seconds and container.duration:
        # The container's, which says nothing of the picture alone: sound may be longer, and
        # Matroska's is the time of the end, counted from 0, not from the first frame.
        seconds = container.duration / av.time_base
        if _is_shorter_than_declared(duration, seconds):
            duration = _length_of_all(container)
    if seconds and _is_shorter_than_declared(duration, seconds):
        raise BadInput(f"truncated: {duration:.1f} of {seconds:.1f} declared seconds are present")


def _is_shorter_than_declared(seconds: float, declared: float) -> bool:
    return seconds < declared * (1 - _DURATION_TOLERANCE) - _DURATION_SLACK


def _length_of_all(container: InputContainer) -> float:
    """Returns how long a file's packets last together, pictures and sound [s]."""
    #     0      10 s     11.6
    #     |       ▒▒▒▒▒▒▒▒|     pictures       Matroska: 11.6, from 0
    #     |          ░░░░░|     sound          others: 1.6, from the first packet
    start, end = float("inf"), 0.0
    with open_video(container.name) as again:
        for packet in again.demux():
            stamp = packet.pts if packet.pts is not None else packet.dts
            if packet.size and stamp is not None and packet.time_base:
                base = float(packet.time_base)
                start = min(start, stamp * base)
                end = max(end, (stamp + (packet.duration or 0)) * base)
    return end if _MATROSKA in container.format.name else end - min(start, end)
