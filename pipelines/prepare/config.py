"""The config of preparing a dataset."""

import dataclasses

from infra.store.digest import NOT_IDENTITY
from pipelines.images.square import BACKGROUND, PAD_COLOUR, ImageSpec
from pipelines.sources.reading.corpus import WEB_TASKS
from pipelines.sources.reading.spec import SourceSpec
from pipelines.transforms.augment import Augmentation
from pipelines.transforms.decode import DecodeConfig
from pipelines.video.client import VideoLimits, installed_decoder
from pipelines.video.sampling import FrameSampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Settings that turn a corpus into a dataset.

    `num_workers`, `runner`, `runner_options`, `stall_s` and `timeout_s` never change its bytes.

    Attributes:
      image_px: side of every stored image [pixels].
      encoding: "jpeg" (quality 95, full chroma) or "png".
      min_side: smallest accepted height or width of an input [pixels].
      max_pixels: largest accepted height * width of an input [pixels].
      background: colour that shows through transparent pixels, "#rrggbb".
      aspect: "squash" stretches pictures and frames to the square; "pad" first makes them square by
        bars at their shorter sides, as LLaVA does. Boxes and masks are those of the square.
      pad_colour: colour of these bars, "#rrggbb".
      num_frames: frames per window of a video; None takes the source's number (16; MSVD-QA: 8).
      frame_stride: distance between frames, counted at 25 frames a second; None takes the source's
        stride [frames].
      frame_window: "first" starts at the first frame, "centre" in the middle, "random" anywhere.
      num_windows: windows of frames stored per video. The first is placed by `frame_window`, the
        others are spread evenly. Training draws one each time it visits the record; evaluation
        takes the first.
      decoder: of videos, "pyav", or "decord" to use it where it is installed and exact, and PyAV
        elsewhere.
      clip_cpu_s: most processor time for decoding one clip, summed over threads [s].
      seed: seed of random windows and augmentation; each file derives its own draws from it.
      augment_resize: share of the images whose resize method is drawn [fraction].
      augment_jpeg: share of the images re-encoded as JPEG of quality 75 to 95 [fraction].
      augment_crop: largest part cut off an image's width, and off its height [fraction].
      tasks: kinds of records made from web images; empty makes all kinds.
      examples_per_task: most records of one task kind per web image.
      limit: most inputs to take; the ids with the smallest hashes are taken. None takes all.
      num_shards: files per part.
      shard_by: "id": a record's shard is a hash of its id, and a shard is sorted by id.
        "archive": a shard is a group of neighbouring archives, and its records stay in the order
        they were read, so that each archive is read once, in sequence. Sources without archives
        are sharded by id anyway, and so is a dataset with a `limit` or of a slice of a split.
      max_reject_rate: the dataset fails above this [fraction of inputs].
      num_workers: processes that decode and write; 1 starts none, and Beam's process works.
      runner: Beam runner.
      runner_options: further Beam options, for example "--project=p".
      stall_s: time without any worker finishing anything after which a worker is taken for lost
        [s]; a piece of work takes half a minute, and a large archive is one piece.
      timeout_s: longest time for the whole run [s].
    """

    image_px: int = 224
    encoding: str = "jpeg"
    min_side: int = 8
    max_pixels: int = 64_000_000
    background: str = BACKGROUND
    aspect: str = "squash"
    pad_colour: str = PAD_COLOUR
    num_frames: int | None = None
    frame_stride: int | None = None
    frame_window: str = "first"
    num_windows: int = 1
    decoder: str = "pyav"
    clip_cpu_s: float = 60.0
    seed: int = 0
    augment_resize: float = 0.0
    augment_jpeg: float = 0.0
    augment_crop: float = 0.0
    tasks: tuple[str, ...] = ()
    examples_per_task: int = 1
    limit: int | None = None
    num_shards: int = 4
    shard_by: str = "id"
    max_reject_rate: float = 0.05
    num_workers: int = dataclasses.field(default=2, metadata=NOT_IDENTITY)
    runner: str = dataclasses.field(default="FnApiRunner", metadata=NOT_IDENTITY)
    runner_options: tuple[str, ...] = dataclasses.field(default=(), metadata=NOT_IDENTITY)
    stall_s: float = dataclasses.field(default=900.0, metadata=NOT_IDENTITY)
    timeout_s: float = dataclasses.field(default=24 * 3600.0, metadata=NOT_IDENTITY)

    def __post_init__(self) -> None:
        for name in (
            "num_shards",
            "num_workers",
            "stall_s",
            "timeout_s",
            "examples_per_task",
            "clip_cpu_s",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}.")
        # None stands for all inputs, or for the source's own frames; 0 would stand for nothing.
        for name in ("limit", "num_frames", "frame_stride"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1 or absent, got {value}.")
        if not 0 <= self.max_reject_rate <= 1:
            raise ValueError(
                f"max_reject_rate must be in [0, 1], a fraction of inputs, got "
                f"{self.max_reject_rate}."
            )
        if unknown := sorted(set(self.tasks) - set(WEB_TASKS)):
            raise ValueError(f"tasks must be of {', '.join(WEB_TASKS)}, got {', '.join(unknown)}.")
        if self.shard_by not in ("id", "archive"):
            raise ValueError(f"shard_by must be id or archive, got {self.shard_by!r}.")
        if not self.runner:
            raise ValueError("runner is empty; FnApiRunner runs on this machine.")
        # Values that end up in other configs are checked there; making these once raises their
        # errors here, before a run is planned.
        self.image_spec(antialias=True)
        self.video_limits()
        self.augmentation()
        FrameSampling(
            num_frames=1, stride=1, window=self.frame_window, num_windows=self.num_windows
        )

    def image_spec(self, *, antialias: bool) -> ImageSpec:
        """Returns the format of stored images and the accepted input sizes."""
        return ImageSpec(
            image_px=self.image_px,
            encoding=self.encoding,
            antialias=antialias,
            min_side=self.min_side,
            max_pixels=self.max_pixels,
            background=self.background,
            aspect=self.aspect,
            pad_colour=self.pad_colour,
        )

    def augmentation(self) -> Augmentation:
        """Returns the augmentation of training images; video frames are not augmented."""
        return Augmentation(
            resize=self.augment_resize, jpeg=self.augment_jpeg, crop=self.augment_crop
        )

    def reject_fault(self, num_rejected: float, num_inputs: int) -> str:
        """Returns why a dataset with so many rejects fails, as the end of a sentence; "" if not."""
        if not num_inputs:
            return "has no inputs"
        if num_rejected / num_inputs <= self.max_reject_rate:
            return ""
        return (
            f"{num_rejected:.0f} of {num_inputs} inputs were rejected "
            f"({num_rejected / num_inputs:.1%}), max_reject_rate is {self.max_reject_rate:.1%}"
        )

    def unaugmented(self) -> "PrepareConfig":
        """Returns this config without augmentation."""
        return dataclasses.replace(self, augment_resize=0.0, augment_jpeg=0.0, augment_crop=0.0)

    def for_evaluation(self, window: str) -> "PrepareConfig":
        """Returns this config with one window per video at a fixed place, and no augmentation.

        Records are sorted by id, the order in which evaluation reads them.

        Args:
          window: "first" or "centre", used if `frame_window` is "random".
        """
        frame_window = window if self.frame_window == "random" else self.frame_window
        changes = {"num_windows": 1, "frame_window": frame_window, "shard_by": "id"}
        return dataclasses.replace(self.unaugmented(), **changes)

    def video_limits(self) -> VideoLimits:
        """Returns the decoder of clips on this machine, and the bounds on the cost of one."""
        return VideoLimits(decoder=installed_decoder(self.decoder), cpu_s=self.clip_cpu_s)

    def decode_config(self, spec: SourceSpec, split: str) -> DecodeConfig:
        """Returns the decoding settings for one split of a source."""
        return DecodeConfig(
            image=self.image_spec(antialias=spec.antialias_of(split)),
            sampling=FrameSampling(
                num_frames=self.num_frames or spec.num_frames,
                stride=self.frame_stride or spec.frame_stride,
                window=self.frame_window,
                num_windows=self.num_windows,
            ),
            augmentation=self.augmentation(),
            seed=self.seed,
        )
