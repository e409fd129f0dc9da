"""The configuration of an evaluation; importing it does not import JAX."""

import dataclasses

from model.decode.config import DecodeConfig
from model.eval.metrics.registry import get_metric


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig(DecodeConfig):
    """The configuration with which a split is answered and scored.

    Attributes:
      metric: a metric's name in the registry.
    """

    metric: str = "exact_match"

    def __post_init__(self) -> None:
        super().__post_init__()
        get_metric(self.metric)
