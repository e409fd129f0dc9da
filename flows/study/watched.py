"""What is looked at while the stages of a study train."""

import dataclasses
from typing import Annotated

from pydantic import Field

from flows.study.source import SourceConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbeOf:
    """A transfer of the study, made small: as its recipe says, but for what is stated here.

    Attributes:
      benchmark: one of `transfers`; at a resolution where it is left out there is no probe.
      steps: updates.
      batch_size: examples per update; None takes the recipe's.
      examples: scored, the first of its first row.
    """

    benchmark: str
    steps: Annotated[int, Field(ge=1)] = 100
    batch_size: Annotated[int, Field(ge=1)] | None = None
    examples: Annotated[int, Field(ge=1)] = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class WatchedConfig:
    """Losses on records that no stage trains on, per task and budget, and a small transfer.

    They stand in `watch.jsonl` beside each stage's checkpoint, whose parameters are the same
    without. The budgets are those that its method is evaluated at.

    Attributes:
      every: distance of the looks; there is one after the last step of a stage as well [steps].
      sources: corpora, or splits of them, that the mixture leaves out: {reader: web, split:
        "train[95%:]"} beside "train[:95%]".
      examples: of each task.
      probe: a small transfer, scored; None for none.
    """

    every: Annotated[int, Field(ge=1)] = 1000
    sources: tuple[SourceConfig, ...] = ()
    examples: Annotated[int, Field(ge=1)] = 256
    probe: ProbeOf | None = None

    def __post_init__(self) -> None:
        if not self.sources and self.probe is None:
            raise ValueError(
                "watch must have sources or a probe: there is nothing to look at; leave it out."
            )


def name_of(source: SourceConfig) -> str:
    """Names the dataset that a watched source becomes."""
    return f"watched/{source.path or source.reader}"
