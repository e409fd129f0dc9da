"""How a split is evaluated, as configuration: no JAX comes with it."""

import dataclasses

from model.decode.config import Decoding
from model.eval.metrics.registry import get_metric


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """How a split is decoded and scored.

    Attributes:
      metric: a name of the registry.
      batch_size: examples decoded together; the last batch is filled up.
      text_len: prefix and separator, and as many tokens again for the answer [tokens].
      max_frames: most images of one example; longer videos are thinned out.
      decoding: greedy by default; beams or drawn where a benchmark asks for it.
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
