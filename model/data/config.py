"""The configuration of training batches: how they are drawn, and how large they are."""

import dataclasses

from pipelines.records.schema import SuffixSampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """The part of a stage's configuration that the loader reads; `TrainConfig.batches` gives it.

    Attributes:
      batch_size: examples per batch, over all devices.
      text_len: see `TrainConfig`.
      mixture: see `TrainConfig`.
      sampling: see `TrainConfig`.
      max_frames: see `TrainConfig`.
    """

    batch_size: int = 16
    text_len: int = 64
    mixture: tuple[tuple[str, float], ...] = ()
    sampling: SuffixSampling = "without_replacement"
    max_frames: int = 16
