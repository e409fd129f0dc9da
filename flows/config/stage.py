"""Config of a pretraining stage of the user's own."""

import dataclasses
from typing import Annotated

from pydantic import Field

from flows.config.stage2 import ResolutionConfig
from model.train.config import TrainConfig

RESERVED = (
    "start", "stage1", "intermediary", "stage2", "mask_codec",
    "prepare", "transfer", "zero-shot", "evaluate", "chance", "results",
)  # fmt: skip
"""Names that stages of one's own cannot have: first words of other steps' names."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageConfig:
    """A pretraining stage that continues from another one, on the same mixture.

    Attributes:
      name: its name; its steps are called "NAME METHOD".
      after: the stage that it continues from: "start", "stage1", "intermediary", "stage2" or an
        earlier one of `stages`. A method that is not trained in that stage continues from what
        that stage would have.
      methods: methods that are trained in it; None trains all.
      train: training recipe.
      resolution: a higher resolution that it has, with transfers at it, of its methods alone; None
        is that of the stage it continues from.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=40)]
    after: str = "intermediary"
    methods: tuple[str, ...] | None = None
    train: TrainConfig = TrainConfig()
    resolution: ResolutionConfig | None = None
