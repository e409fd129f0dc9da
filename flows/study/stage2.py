"""Stage 2: pretraining at a higher resolution, and the transfers that follow it."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from flows.study.image_size import with_prepared_px
from flows.study.source import SourceConfig
from flows.study.transfer import TransferConfig, with_recipes
from model.config import Remat
from model.connector.config import ConnectorConfig
from model.train.config import TrainConfig
from pipelines.prepare.config import PrepareConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage2Config:
    """Each method pretrained further with larger images, then transferred at that size as well.

    Position embeddings are resized and query banks extended (`model.train.resolution`). What is
    left out is the study's, fitted to the larger images: budgets and training budgets keep their
    share of the features, so 16, 64 and 256 tokens at 224 px are 64, 256 and 1024 at 448 px.

    Attributes:
      image_px: side of its images; records are prepared at this size anew [pixels].
      train: how every method goes on from its intermediary checkpoint.
      prepare: as the study's.
      sources: as the study's; the mixture of this stage.
      connectors: as the study's, whose declared shapes are not taken over.
      budgets, train_budgets: as the study's.
      num_seeds: transfer seeds of each pretraining seed, the first of the study's; the paper: 1.
      transfers: what differs from the study's `transfers`, benchmark by benchmark; null leaves one
        out. Recipes are the registry's for this size.
      eval_batch_size: as the study's.
      remat: as `model.remat`; larger images leave less memory for what is kept.
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
    """Returns a study's plain values, those of `stage2.transfers` on top of its `transfers`.

    A prepared size that is stated for the study's images is not taken over.
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
      budget: at the lower resolution.
      before: features of an image there.
      after: features of an image at the higher one.
    """
    return after if budget == before else 2 * round(budget * after / before / 2)


def _joined(base: Any, own: Any) -> Any:
    """Returns a mapping with another one on top of it; anything else replaces what is there."""
    if not isinstance(base, Mapping) or not isinstance(own, Mapping):
        return own
    joined = {**base, **{key: _joined(base.get(key), value) for key, value in own.items()}}
    if "total_steps" in own and "epochs" not in own:
        joined.pop("epochs", None)  # They are two ways to say one thing.
    return joined


def _unsized(entry: Any) -> Any:
    """Returns the values of a transfer without the size of its images."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("prepare"), Mapping):
        return entry
    kept = {key: value for key, value in entry["prepare"].items() if key != "image_px"}
    return {**entry, "prepare": kept}
