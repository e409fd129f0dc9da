"""Config of a variant: a method trained in another way and compared as a further method."""

import dataclasses
import math
from typing import Annotated

from pydantic import Field

from model.train.config import TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """A method trained in another way than the study trains it.

    Attributes:
      of: the method whose connector and `start` the variant uses; and its connector settings,
        unless the study's `connectors` have some for the variant.
      train_budgets: budgets that the variant's trainings draw from; None draws uniformly from all
        that it serves.
      length: length of its intermediary stage, Stage 2 and transfers, in updates or epochs, as a
        multiple of the study's.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    of: Annotated[str, Field(min_length=1)]
    train_budgets: tuple[int, ...] | None = None
    length: Annotated[float, Field(gt=0, le=1000)] = 1.0

    def trained(self, train: TrainConfig) -> TrainConfig:
        """Returns the recipe of one of the study's trainings, changed as the variant says."""
        return dataclasses.replace(
            train,
            budgets=self.train_budgets,
            total_steps=math.ceil(train.total_steps * self.length),
            epochs=train.epochs and train.epochs * self.length,
        )
