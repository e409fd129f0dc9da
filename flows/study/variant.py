"""A method trained in another way, compared with the others as a method of its own."""

import dataclasses
import math
from typing import Annotated

from pydantic import Field

from model.train.config import TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """How a method is trained otherwise than the study's methods are.

    Attributes:
      of: the method whose connector, with its settings, and whose start it has.
      train_budgets: as the study's, of this variant; None draws uniformly from all it serves.
      length: updates of its intermediary stage, its Stage 2 and its transfers, or their passes
        over the records, as a multiple of the study's.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    of: Annotated[str, Field(min_length=1)]
    train_budgets: tuple[int, ...] | None = None
    length: Annotated[float, Field(gt=0, le=1000)] = 1.0

    def trained(self, train: TrainConfig) -> TrainConfig:
        """Returns a stage of the study as this variant trains it."""
        return dataclasses.replace(
            train,
            budgets=self.train_budgets,
            total_steps=math.ceil(train.total_steps * self.length),
            epochs=train.epochs and train.epochs * self.length,
        )
