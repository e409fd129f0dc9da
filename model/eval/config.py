"""The configuration of an evaluation; importing it does not import JAX."""

import dataclasses

from model.decode.config import Decoding
from model.eval.metrics.registry import get_metric


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """The configuration with which a split is decoded and scored.

    Attributes:
      metric: a metric's name in the registry.
      batch_size: examples decoded together; the last batch is filled up.
      text_len: length of prefix and separator; the answer may be as long again [tokens].
      max_frames: most images of one example; longer videos are thinned out.
      decoding: greedy by default; beam search or sampling where a benchmark asks for it.
    """

    metric: str = "exact_match"
    batch_size: int = 32
    text_len: int = 64
    max_frames: int = 16
    decoding: Decoding = Decoding()

    def __post_init__(self) -> None:
        get_metric(self.metric)
        for name in ("batch_size", "text_len", "max_frames"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
