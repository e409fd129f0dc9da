"""Which times of a video to look at."""

import dataclasses

from pipelines.records.schema import BadInput

STORAGE_FPS = 25.0
"""Frames a second that strides count in. big_vision's strides are over stored frames, whose rate is
unpublished; DMVR, the reader's family, stores 25."""

WINDOWS = ("first", "centre", "random")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameSampling:
    """How frames are chosen.

    Attributes:
      num_frames: frames per record.
      stride: their distance at 25 frames a second [frames].
      window: "first" starts at the first frame (big_vision's evaluation), "centre" in the middle,
        "random" where `draw` says.
      draw: begin of a random window, in [0, 1): 0 is the first frame, 1 as late as still fits.
      start: of the part that frames are chosen in, from the first frame [s].
      end: of that part; None for the video's [s].
    """

    num_frames: int
    stride: int
    window: str = "first"
    draw: float = 0.0
    start: float = 0.0
    end: float | None = None

    def __post_init__(self) -> None:
        if self.num_frames < 1 or self.stride < 1:
            raise ValueError(
                f"num_frames and frame_stride must be positive, got {self.num_frames} and "
                f"{self.stride}."
            )
        if self.window not in WINDOWS:
            raise ValueError(f"window must be one of {', '.join(WINDOWS)}, got {self.window!r}.")
        if not 0 <= self.draw < 1:
            raise ValueError(f"draw must be in [0, 1), got {self.draw}.")
        if not 0 <= self.start <= (self.start if self.end is None else self.end):
            raise ValueError(f"start must be in 0..end, got {self.start} and {self.end}.")

    def times(self, duration: float) -> list[float]:
        """Returns the distinct times to decode, from the first frame [s].

        Fewer than `num_frames` if the part is shorter than the window; see `loop`.

        Raises:
          BadInput: if the part begins after the video's end.
        """
        if self.start >= duration > 0:
            raise BadInput(f"the part from {self.start:g} s begins after the end, {duration:.2f} s")
        end = duration if self.end is None else min(self.end, duration)
        step = self.stride / STORAGE_FPS
        free = max(0.0, end - self.start - (self.num_frames - 1) * step)
        first = self.start + free * {"first": 0.0, "centre": 0.5, "random": self.draw}[self.window]
        times = [first + i * step for i in range(self.num_frames)]
        return [t for i, t in enumerate(times) if i == 0 or t < end - 1e-6]

    def loop(self, num_decoded: int) -> list[int]:
        """Returns which decoded frame each of the `num_frames` is: short videos repeat."""
        return [i % num_decoded for i in range(self.num_frames)]
