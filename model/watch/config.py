"""Settings of the evaluations that run while a stage trains; they do not import JAX."""

import dataclasses

from model.config import ModelConfig
from model.eval.config import EvalConfig
from model.train.config import TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """Settings of the probe: a small transfer from a stage's current parameters, done repeatedly.

    Attributes:
      model: config of the model to fine-tune.
      train: training recipe, with a few updates.
      decode: settings for decoding and scoring its answers.
      examples: number of examples to score, the first by id.
    """

    model: ModelConfig
    train: TrainConfig
    decode: EvalConfig
    examples: int

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ValueError(f"probe.examples must be at least 1, got {self.examples}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WatchConfig:
    """Settings of the evaluations during a stage.

    Attributes:
      every: distance between two evaluations; there is one after the last step as well [steps].
      examples: number of examples of each task whose loss is computed, in whole batches of at most
        the stage's batch size.
      budgets: budgets of the evaluations; the connector must serve each.
      probe: settings of the probe; None for no probe.
    """

    every: int
    examples: int
    budgets: tuple[int, ...]
    probe: ProbeConfig | None = None

    def __post_init__(self) -> None:
        for name in ("every", "examples"):
            if getattr(self, name) < 1:
                raise ValueError(f"watch.{name} must be at least 1, got {getattr(self, name)}.")
