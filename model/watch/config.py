"""What is looked at while a stage trains, as configuration: no JAX comes with it."""

import dataclasses

from model.config import ModelConfig
from model.eval.config import EvalConfig
from model.train.config import TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """A transfer small enough to be done again and again, from the parameters of the moment.

    Attributes:
      model: what is fine-tuned.
      train: how; a few updates.
      decode: how its answers are decoded and scored.
      examples: scored, the first by id.
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
    """How often a stage is looked at, and how closely.

    Attributes:
      every: distance of the looks; there is one after the last step as well [steps].
      examples: of each task, whose loss is computed, in whole batches of at most the stage's size.
      budgets: at which, each served by the connector.
      probe: a small transfer besides; None for none.
    """

    every: int
    examples: int
    budgets: tuple[int, ...]
    probe: ProbeConfig | None = None

    def __post_init__(self) -> None:
        for name in ("every", "examples"):
            if getattr(self, name) < 1:
                raise ValueError(f"watch.{name} must be at least 1, got {getattr(self, name)}.")
