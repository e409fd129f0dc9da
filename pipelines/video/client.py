"""Decoding in a child process: a hang, a crash or a memory blow-up costs one reject."""

import dataclasses
import json
import os
import select
import subprocess
import sys
import time

from pipelines.sources.item import BadInput
from pipelines.transforms.images import ImageSpec
from pipelines.transforms.render import Pixels
from pipelines.video.sampling import FrameSampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class VideoLimits:
    """What one clip may cost.

    Attributes:
      decoder: "pyav", or "decord" to use it where it is exact.
      timeout_s: longest time for one clip [s].
      memory_mb: address space of the child [MiB]; 720p needs about 700.
      clips_per_child: clips after which a child is replaced, as decord grows.
    """

    decoder: str = "pyav"
    timeout_s: float = 60.0
    memory_mb: int = 4096
    clips_per_child: int = 500

    def __post_init__(self) -> None:
        if self.decoder not in ("pyav", "decord"):
            raise ValueError(f"decoder must be pyav or decord, got {self.decoder!r}.")
        for name in ("timeout_s", "memory_mb", "clips_per_child"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}.")


class VideoChild:
    """A decoding process, started when first needed and after every failure. Not thread-safe."""

    def __init__(self, limits: VideoLimits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._clips = 0
        self._buffer = b""

    def sample(self, path: str, sha256: str, sampling: FrameSampling, spec: ImageSpec) -> Pixels:
        """Returns the sampled frames of a video.

        Raises:
          BadInput: if it cannot be decoded within the limits.
        """
        request = {
            "path": path,
            "sampling": dataclasses.asdict(sampling),
            "spec": dataclasses.asdict(spec),
            "decoder": self._limits.decoder,
        }
        deadline = time.monotonic() + self._limits.timeout_s
        try:
            header, images = self._ask(request, deadline)
        except (TimeoutError, EOFError, OSError) as error:
            code = self._stop()
            if isinstance(error, TimeoutError):
                raise BadInput(f"decoding took longer than {self._limits.timeout_s:g} s") from error
            raise BadInput(f"the decoder died (exit status {code})") from error
        if "error" in header:
            raise BadInput(header["error"])
        return Pixels(
            images=tuple(images),
            size=tuple(header["size"]),
            sha256=sha256,
            requested=tuple(header["requested"]),
            decoded=tuple(header["decoded"]),
        )

    @property
    def pid(self) -> int | None:
        """Number of the process; None if there is none."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._stop()

    def _ask(self, request: dict, deadline: float) -> tuple[dict, list[bytes]]:
        process = self._running()
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        while b"\n" not in self._buffer:
            self._receive(process, deadline)
        line, _, self._buffer = self._buffer.partition(b"\n")
        header = json.loads(line)
        chunks, needed = [self._buffer], sum(header["sizes"])
        received = len(self._buffer)
        while received < needed:
            self._buffer = b""
            self._receive(process, deadline)
            chunks.append(self._buffer)
            received += len(self._buffer)
        data, images = b"".join(chunks), []
        for size in header["sizes"]:
            images.append(data[:size])
            data = data[size:]
        self._buffer = data
        return header, images

    def _receive(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        assert process.stdout is not None
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            raise TimeoutError
        data = os.read(process.stdout.fileno(), 1 << 20)
        if not data:
            raise EOFError
        self._buffer += data

    def _running(self) -> subprocess.Popen[bytes]:
        """Returns the process, a fresh one if there is none or it has served its time."""
        if self._process is not None and self._clips >= self._limits.clips_per_child:
            self._stop()
        if self._process is None:
            memory = str(self._limits.memory_mb << 20)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipelines.video.child", memory],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
            self._clips, self._buffer = 0, b""
        self._clips += 1
        return self._process

    def _stop(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue  # Unsent input of a process that is gone.
        return process.wait()
