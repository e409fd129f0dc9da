"""Decoding in a child process: a hang, a crash or a memory blow-up costs a child, not the run.

The result for a clip depends on the clip alone. If a child is killed or stopped from outside, a new
child decodes the clip again, so the bytes are those of an undisturbed run. A clip is refused only
if its decoding fails in two children that have decoded nothing else.
"""

import dataclasses
import json
import os
import select
import signal
import subprocess
import time
from importlib.util import find_spec
from typing import NamedTuple

from infra.processes.module import module_command, python_path
from pipelines.images.square import ImageSpec
from pipelines.records.schema import BadInput
from pipelines.video.sampling import FrameSampling

_MAX_CLIP_FAILURES = 2
"""Number of fresh children that a clip must bring down before it is refused."""

_OUTSIDE_FAILURES = 3
"""Number of children lost to other causes on one clip at which decoding fails with an error."""

_WATCHDOG = 20
"""Longest wall time of a clip, as a multiple of `cpu_s`; the machine may be busy."""

_STARTUP_S = 300
"""Longest time for a child to start; on an idle machine it takes half a second [s]."""

_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
"""Signals that mean that the process itself crashed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class VideoLimits:
    """Decoder and limits for one clip.

    Attributes:
      decoder: "pyav", or "decord" to use it where it is exact; it must be installed.
      cpu_s: most processor time for one clip, summed over threads [s].
      memory_mb: address space of the child [MiB]; 720p needs about 700.
      clips_per_child: clips after which a child is replaced, since decord's memory grows.
    """

    decoder: str = "pyav"
    cpu_s: float = 60.0
    memory_mb: int = 4096
    clips_per_child: int = 500

    def __post_init__(self) -> None:
        if self.decoder not in ("pyav", "decord"):
            raise ValueError(f"decoder must be pyav or decord, got {self.decoder!r}.")
        for name in ("cpu_s", "memory_mb", "clips_per_child"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}.")


def installed_decoder(preferred: str) -> str:
    """Returns the decoder that this machine has: "pyav" where "decord" is wanted and not installed.

    decord has wheels for Linux on x86-64 only.
    """
    return "pyav" if preferred == "decord" and find_spec("decord") is None else preferred


class SampledFrames(NamedTuple):
    """The frames sampled from one video.

    Attributes:
      images: encoded squares, window after window.
      size: width and height before they were made square [pixels].
      requested: requested time of each frame [s].
      decoded: time of the frame that was actually decoded, per frame [s].
      num_windows: number of windows in `images`.
      composed: whether the background shows through transparent pixels.
      duration: length of the video, from its first frame on [s].
      decoder: the decoder that was used, "pyav" or "decord".
    """

    images: tuple[bytes, ...]
    size: tuple[int, int]
    requested: tuple[float, ...]
    decoded: tuple[float, ...]
    num_windows: int
    composed: bool = False
    duration: float = 0.0
    decoder: str = "pyav"


class VideoChildLostError(RuntimeError):
    """Several children in a row were killed or stalled, and the clip was not the cause."""


class _ClipFailure(Exception):
    """The clip exceeded a limit of its child or crashed it."""


class _ChildLoss(Exception):
    """The child was killed, stalled or did not start, for a reason outside of the clip."""


class VideoChild:
    """A decoding process, started when first needed and after every failure. Not thread-safe."""

    def __init__(self, limits: VideoLimits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._clips = 0
        self._buffer = b""

    def sample(self, path: str, sampling: FrameSampling, spec: ImageSpec) -> SampledFrames:
        """Returns the sampled frames of a video.

        Raises:
          BadInput: if it cannot be decoded within the limits.
          VideoChildLostError: if `_OUTSIDE_FAILURES` children are lost for other reasons.
          RuntimeError: if decord is installed and cannot be imported.
        """
        request = {
            "path": path,
            "sampling": dataclasses.asdict(sampling),
            "spec": dataclasses.asdict(spec),
            "decoder": self._limits.decoder,
            "cpu_s": self._limits.cpu_s,
        }
        # what happened to the child        whose fault                then
        # answered with an error             the clip's                 reject
        # out of time or memory, crashed     the clip's, if the child   a fresh child; the second
        #                                    had decoded nothing else   time in a row: reject
        # killed, stalled, did not start     the machine's              a fresh child; the third
        #                                                               time: the run fails
        clip_failures = child_losses = 0
        while True:
            try:
                header, images = self._exchange(request)
                break
            except _ClipFailure as failure:
                # Earlier clips leave fragmented memory and full caches. So only a failure in a
                # child that has decoded no other clip counts against this one.
                clip_failures += self._clips == 1
                self.close()
                if clip_failures == _MAX_CLIP_FAILURES:
                    raise BadInput(str(failure)) from failure
            except _ChildLoss as failure:
                child_losses += 1
                self.close()
                if child_losses == _OUTSIDE_FAILURES:
                    raise VideoChildLostError(
                        f"the process that decodes {path} was lost {child_losses} times: "
                        f"{failure}. The clip is not to blame; look at the machine's memory and "
                        f"its load, then run this again."
                    ) from failure
        # An error in the answer is a verdict on the clip; another child would say the same.
        if "error" in header:
            raise BadInput(header["error"])
        if "missing" in header:
            raise RuntimeError(
                f"decord is installed and cannot be imported ({header['missing']}); install it "
                f"again, or set prepare.decoder to pyav."
            )
        return SampledFrames(
            images=tuple(images),
            size=tuple(header["size"]),
            requested=tuple(header["requested"]),
            decoded=tuple(header["decoded"]),
            num_windows=header["num_windows"],
            composed=header["composed"],
            duration=header["duration"],
            decoder=header["decoder"],
        )

    @property
    def pid(self) -> int | None:
        """Id of the child process; None if there is none."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue  # The dead process left input unread, which cannot be flushed.
        process.wait()

    def _exchange(self, request: dict) -> tuple[dict, list[bytes]]:
        """Returns the answer's header and its images.

        Raises:
          _ClipFailed: if the clip exceeds a limit or crashes the child.
          _ChildLost: if the child ends for another reason, or stalls.
        """
        # The request is a line; the answer is a line with the sizes of the frames, then their
        # bytes. Whatever goes wrong is told by how the child ends:
        #
        #     ─▶ {"path": …, "sampling": …}
        #     ◀─ {"size": …, "sizes": [9120, 8954]}
        #     ◀─ 9120 bytes, 8954 bytes
        process = self._running_child()
        assert process.stdin is not None
        deadline = time.monotonic() + _WATCHDOG * self._limits.cpu_s
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            header = json.loads(self._read_answer_line(process, deadline))
            data = self._read_answer_bytes(process, sum(header["sizes"]), deadline)
        except (EOFError, BrokenPipeError):
            raise self._child_end_error(process.wait()) from None
        if "limit" in header:
            raise _ClipFailure(header["limit"])
        images = []
        for size in header["sizes"]:
            images.append(data[:size])
            data = data[size:]
        return header, images

    def _child_end_error(self, status: int) -> Exception:
        """Returns the exception for a child that ended in the middle of a clip."""
        # The child's own timer, an exit of its own (an uncaught error) and crashes are the clip's
        # doing. Any other signal, such as SIGKILL of the kernel's out-of-memory killer, comes from
        # outside.
        if status == -signal.SIGPROF:
            return _ClipFailure(f"decoding took more than {self._limits.cpu_s:g} s of CPU time")
        if status >= 0:
            return _ClipFailure(f"the decoder died (exit status {status})")
        if -status in _CRASHES:
            return _ClipFailure(f"the decoder died ({signal.Signals(-status).name})")
        return _ChildLoss(f"killed by signal {-status}")

    def _read_answer_line(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        while b"\n" not in self._buffer:
            self._buffer += self._receive_child_output(process, deadline)
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _read_answer_bytes(
        self, process: subprocess.Popen[bytes], needed: int, deadline: float
    ) -> bytes:
        chunks, received = [self._buffer], len(self._buffer)
        while received < needed:
            chunks.append(self._receive_child_output(process, deadline))
            received += len(chunks[-1])
        data = b"".join(chunks)
        self._buffer = data[needed:]
        return data[:needed]

    def _receive_child_output(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        assert process.stdout is not None
        # A watchdog on wall time, far above the limit on processor time, which the child enforces
        # itself.
        seconds_left = deadline - time.monotonic()
        if seconds_left <= 0 or not select.select([process.stdout], [], [], seconds_left)[0]:
            raise _ChildLoss("it stalled")
        data = os.read(process.stdout.fileno(), 1 << 20)
        if not data:
            raise EOFError
        return data

    def _running_child(self) -> subprocess.Popen[bytes]:
        """Returns the child, a fresh one if there is none or it has decoded `clips_per_child`.

        Raises:
          _ChildLost: if it does not start.
        """
        from pipelines.video import child  # Imports the decoders, which only videos need.

        if self._process is not None and self._clips >= self._limits.clips_per_child:
            self.close()
        if self._process is None:
            # A process with a clean start and its own address space, not a fork: a fork would
            # inherit this one's memory, threads and locks.
            memory = str(self._limits.memory_mb << 20)
            self._process = subprocess.Popen(
                module_command(child.__name__, memory),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=child_environment(),
            )
            self._clips, self._buffer = 0, b""
            try:
                self._read_answer_line(self._process, time.monotonic() + _STARTUP_S)  # It is ready.
            except EOFError:
                status = self._process.wait()
                raise _ChildLoss(f"it did not start (exit status {status})") from None
        # Counted when it begins: 1 means that this child has decoded nothing else.
        self._clips += 1
        return self._process


def child_environment() -> dict[str, str]:
    """Returns the child's environment, in which imports find the same modules as here."""
    return {
        **os.environ,
        "PYTHONPATH": python_path(),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
