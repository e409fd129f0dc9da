"""Config of the measurements on held-out data that are made while a study's stages train."""

import dataclasses
from typing import Annotated

from pydantic import Field

from flows.config.source import SourceConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProbedBenchmark:
    """A small version of one of the study's transfers: its recipe, with the changes stated here.

    Attributes:
      benchmark: a benchmark of `transfers`; at a resolution that leaves it out there is no probe.
      steps: number of updates.
      batch_size: examples per update; None takes the recipe's.
      examples: number of examples scored, the first ones of the benchmark's first row.
    """

    benchmark: str
    steps: Annotated[int, Field(ge=1)] = 100
    batch_size: Annotated[int, Field(ge=1)] | None = None
    examples: Annotated[int, Field(ge=1)] = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class WatchedConfig:
    """Losses on records that no stage trains on, per task and budget, and a small transfer.

    They are written to `watch.jsonl` beside each stage's checkpoint, and do not change its
    parameters. The budgets are those at which the stage's method is evaluated.

    Attributes:
      every: interval between measurements; there is also one after a stage's last step [steps].
      sources: corpora, or splits of them, that the mixture leaves out: {reader: web, split:
        "train[95%:]"} where the mixture has "train[:95%]".
      examples: examples of each task.
      probe: a small transfer whose score is measured; None leaves it out.
    """

    every: Annotated[int, Field(ge=1)] = 1000
    sources: tuple[SourceConfig, ...] = ()
    examples: Annotated[int, Field(ge=1)] = 256
    probe: ProbedBenchmark | None = None

    def __post_init__(self) -> None:
        if not self.sources and self.probe is None:
            raise ValueError(
                "watch must have sources or a probe, got neither; add one, or leave watch out."
            )


def watched_name(source: SourceConfig) -> str:
    """Returns the name of the dataset that a watched source becomes."""
    return f"watched/{source.path or source.reader}"
