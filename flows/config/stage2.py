"""Config of Stage 2: pretraining at a higher resolution, and the transfers that follow it."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from flows.config.benchmark import TransferConfig, with_recipes
from flows.config.image_size import with_prepared_px
from flows.config.source import SourceConfig
from model.config import Remat
from model.connector.config import ConnectorConfig
from model.train.config import TrainConfig
from pipelines.prepare.config import PrepareConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage2Config:
    """Further pretraining of each method with larger images, then transfers at that size as well.

    Position embeddings are resized and query banks extended (`model.train.resolution`). Settings
    that are left out are the study's, fitted to the larger images: budgets and training budgets
    keep their share of the features, so 16, 64 and 256 tokens at 224 px become 64, 256 and 1024 at
    448 px.

    Attributes:
      image_px: side of its images; records are prepared again at this size [pixels].
      train: training recipe with which every method continues from its intermediary checkpoint.
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
    train: TrainConfig = TrainConfig()
    prepare: PrepareConfig | None = None
    sources: tuple[SourceConfig, ...] | None = None
    connectors: dict[str, ConnectorConfig] = dataclasses.field(default_factory=dict)
    budgets: Annotated[
        tuple[Annotated[int, Field(ge=2)], ...] | None,
        Field(json_schema_extra={"uniqueItems": True}),
    ] = None
    train_budgets: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    num_seeds: Annotated[int, Field(ge=1, le=100)] | None = None
    transfers: Annotated[dict[str, TransferConfig | None], BeforeValidator(with_recipes)] | None = (
        None
    )
    eval_batch_size: Annotated[int, Field(ge=1)] | None = None
    remat: Remat | None = None


def with_stage2(values: Any) -> Any:
    """Returns a study's plain values, with `stage2.transfers` filled in from its `transfers`.

    The study's `prepare.image_px` is not copied, since Stage 2 has its own image size.
    """
    stage2 = values.get("stage2") if isinstance(values, Mapping) else None
    if not isinstance(stage2, Mapping):
        return values
    own, base = stage2.get("transfers") or {}, values.get("transfers") or {}
    if isinstance(own, Mapping) and isinstance(base, Mapping):
        merged = {name: _joined(_unsized(entry), own.get(name, {})) for name, entry in base.items()}
        stage2 = {**stage2, "transfers": {**merged, **{k: own[k] for k in own if k not in base}}}
    px = stage2.get("image_px", Stage2Config.image_px)
    return {**values, "stage2": with_prepared_px(stage2, px) if isinstance(px, int) else stage2}


def scaled(budget: int, before: int, after: int) -> int:
    """Returns the budget with the same share of the features [tokens].

    Args:
      budget: budget at the lower resolution [tokens].
      before: features of an image at the lower resolution.
      after: features of an image at the higher one.
    """
    return after if budget == before else 2 * round(budget * after / before / 2)


def _joined(base: Any, own: Any) -> Any:
    """Returns mapping `own` merged over `base`, recursively; other values replace the base's."""
    if not isinstance(base, Mapping) or not isinstance(own, Mapping):
        return own
    joined = {**base, **{key: _joined(base.get(key), value) for key, value in own.items()}}
    if "total_steps" in own and "epochs" not in own:
        joined.pop("epochs", None)  # `epochs` would take precedence over `total_steps`.
    return joined


def _unsized(entry: Any) -> Any:
    """Returns the plain values of a transfer without its `prepare.image_px`."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("prepare"), Mapping):
        return entry
    kept = {key: value for key, value in entry["prepare"].items() if key != "image_px"}
    return {**entry, "prepare": kept}
