"""Choice of the times at which frames are taken from a video."""

import dataclasses

from pipelines.records.schema import BadInput

STORAGE_FPS = 25.0
"""Frame rate in which strides count [frames / s]. big_vision's strides count stored frames, whose
rate is unpublished; DMVR, to which its reader belongs, stores 25."""

WINDOWS = ("first", "centre", "random")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameSampling:
    """Rule by which frames are chosen.

    Attributes:
      num_frames: frames per window.
      stride: distance between frames, counted at 25 frames a second [frames].
      window: "first" starts at the first frame (big_vision's evaluation), "centre" in the middle,
        "random" at `draw`.
      draw: start of a random window, in [0, 1): 0 is the first frame, 1 as late as still fits.
      num_windows: windows per record. The first is placed by `window`; the others begin at equal
        distances after it, and wrap around to the first frame past the last start that fits.
      start: start of the part of the video in which frames are chosen, from its first frame [s].
      end: end of that part; None for the end of the video [s].
    """

    num_frames: int
    stride: int
    window: str = "first"
    draw: float = 0.0
    num_windows: int = 1
    start: float = 0.0
    end: float | None = None

    def __post_init__(self) -> None:
        if self.num_frames < 1 or self.stride < 1 or self.num_windows < 1:
            raise ValueError(
                f"num_frames, frame_stride and num_windows must be positive, got "
                f"{self.num_frames}, {self.stride} and {self.num_windows}."
            )
        if self.window not in WINDOWS:
            raise ValueError(f"window must be one of {', '.join(WINDOWS)}, got {self.window!r}.")
        if not 0 <= self.draw < 1:
            raise ValueError(f"draw must be in [0, 1), got {self.draw}.")
        if not 0 <= self.start <= (self.start if self.end is None else self.end):
            raise ValueError(f"start must be in 0..end, got {self.start} and {self.end}.")

    def windows(self, duration: float) -> list[list[float]]:
        """Returns the distinct times of each window, from the first frame [s].

        If the part is shorter than a window, there are fewer than `num_frames` times (see `loop`)
        and only one window, since all would be the same.

        Raises:
          BadInput: if the part begins after the video's end.
        """
        if self.start >= duration > 0:
            raise BadInput(f"the part from {self.start:g} s begins after the end, {duration:.2f} s")
        end = duration if self.end is None else min(self.end, duration)
        # Four frames at distance `step` in a part of the video; `free` is the room to move them in:
        #
        #   start |x---x---x---x········| end    "first":  begin 0.0
        #         |····x---x---x---x····|        "centre": begin 0.5    free = 8 dots
        step = self.stride / STORAGE_FPS
        free = max(0.0, end - self.start - (self.num_frames - 1) * step)
        begin = {"first": 0.0, "centre": 0.5, "random": self.draw}[self.window]
        windows = []
        for number in range(self.num_windows if free else 1):
            first = self.start + free * ((begin + number / self.num_windows) % 1)
            times = [first + i * step for i in range(self.num_frames)]
            windows.append([t for i, t in enumerate(times) if i == 0 or t < end - 1e-6])
        return windows

    def loop(self, num_decoded: int) -> list[int]:
        """Returns the decoded frame's index for each of `num_frames`; short videos repeat them."""
        return [i % num_decoded for i in range(self.num_frames)]
