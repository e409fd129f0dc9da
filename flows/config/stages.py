"""Configs of Stage 2, of pretraining stages of the user's own, and of a higher resolution."""

import dataclasses
from typing import Annotated

from pydantic import Field

from flows.config.benchmark import TransferConfig
from flows.config.source import SourceConfig
from model.config import Remat
from model.connector.config import ConnectorConfig
from model.train.config import TrainConfig
from pipelines.prepare.config import PrepareConfig

RESERVED = (
    "start", "stage1", "intermediary", "stage2", "mask_codec",
    "prepare", "transfer", "zero-shot", "evaluate", "chance", "results",
)  # fmt: skip
"""Names that stages of one's own cannot have: first words of other steps' names."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResolutionConfig:
    """A higher resolution of a study: a stage with larger images, then transfers at that size.

    Position embeddings are resized and query banks extended (`model.train.resolution`). Settings
    that are left out are the study's, fitted to the larger images: budgets and training budgets
    keep their share of the features, so 16, 64 and 256 tokens at 224 px become 64, 256 and 1024 at
    448 px.

    Attributes:
      image_px: side of its images; records are prepared again at this size [pixels].
      prepare: how raw data become records at this size; None takes the study's.
      sources: corpora of this stage's mixture; None takes the study's.
      connectors: method -> settings of its connector; a method that is not named has the study's,
        except declared shapes.
      budgets: soft tokens per frame at evaluation; None scales the study's.
      train_budgets: method -> training budgets; those of a method that is not named are scaled from
        the study's.
      num_seeds: transfer seeds of each pretraining seed, the first of the study's; None takes as
        many as the study; the paper: 1.
      transfers: changes to the study's `transfers`, benchmark by benchmark; null leaves a benchmark
        out. Recipes are the registry's for this size.
      eval_batch_size: examples decoded together; None takes the study's.
      remat: value of `model.remat` for this stage, where larger images leave less memory; None
        takes the model's.
    """

    image_px: Annotated[int, Field(ge=1)] = 448
    prepare: PrepareConfig | None = None
    sources: tuple[SourceConfig, ...] | None = None
    connectors: dict[str, ConnectorConfig] = dataclasses.field(default_factory=dict)
    budgets: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...] | None,
        Field(json_schema_extra={"uniqueItems": True}),
    ] = None
    train_budgets: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    num_seeds: Annotated[int, Field(ge=1, le=100)] | None = None
    transfers: dict[str, TransferConfig | None] | None = None
    eval_batch_size: Annotated[int, Field(ge=1)] | None = None
    remat: Remat | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage2Config(ResolutionConfig):
    """Further pretraining of each method with larger images, then transfers at that size as well.

    Attributes:
      train: training recipe with which every method continues from its last checkpoint.
    """

    train: TrainConfig = TrainConfig()


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


def scale_budget(budget: int, before: int, after: int) -> int:
    """Returns the budget with the same share of the features [tokens].

    Args:
      budget: budget at the lower resolution [tokens].
      before: features of an image at the lower resolution.
      after: features of an image at the higher one.
    """
    return after if budget == before else 2 * round(budget * after / before / 2)
