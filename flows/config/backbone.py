"""Config of a backbone: an image tower and a decoder that a study compares its methods on."""

import dataclasses
from typing import Annotated, Literal

from pydantic import Field

from flows.steps.kinds.tokenizer import TokenizerConfig
from model.config import ModelConfig, Projector
from model.connector.config import ConnectorConfig
from model.text.config import TextConfig
from model.text.registry import decoder_family
from model.train.config import TrainConfig
from model.vision.config import VisionConfig

AS_STUDY: Literal["study"] = "study"
"""Stands for what the study states, where null states something else."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackboneModel:
    """The parts of a backbone's model that differ from the study's; None takes the study's.

    Attributes:
      vision: the image tower.
      text: the decoder.
      connector: settings of connectors, in place of `model.connector`.
      projector: layers from features to the decoder's width.
      attn_softcap: cap of attention logits; left out, it is the study's, or the decoder family's
        where the study's family has none, or this one has none.
      final_softcap: cap of output logits, likewise.
    """

    vision: VisionConfig | None = None
    text: TextConfig | None = None
    connector: ConnectorConfig | None = None
    projector: Projector | None = None
    attn_softcap: float | None = None
    final_softcap: float | None = None

    def model_in(self, study: ModelConfig) -> ModelConfig:
        """Returns the study's model with the backbone's parts."""
        changes = {name: value for name, value in vars(self).items() if value is not None}
        vision = changes.get("vision", study.vision)
        if vision.num_patches != study.vision.num_patches:
            # Declared for another number of patches.
            changes = {"connector": dataclasses.replace(study.connector, buckets=()), **changes}
        caps = decoder_family(changes.get("text", study.text).family).softcaps
        if caps != decoder_family(study.text.family).softcaps:
            usual = ModelConfig if caps else None
            for name in ("attn_softcap", "final_softcap"):
                changes.setdefault(name, getattr(usual, name, 0.0))
        return dataclasses.replace(study, **changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """A tower and a decoder of a study, and what else differs with them; all else is the study's.

    Attributes:
      model: its tower and decoder. A name VISION+TEXT of the backbone states them, too.
      tokenizer: its tokenizer; None takes the study's. It must be stated where the study's is a
        file, and the decoder is of another family than the study's.
      start: checkpoint that its first stage starts from, as in the study; null starts from random
        parameters. "study" takes the study's, which must be of the same tower and decoder.
      budgets: soft tokens per frame at evaluation; None takes the study's, with all tokens of this
        tower in the place of all tokens of the study's.
      train_budgets: method -> training budgets; a method that is not named has the study's,
        likewise.
      connectors: method -> settings of its connector; a method that is not named has the study's,
        without declared shapes where the number of patches is another.
      stage1: its vanilla pretraining, laid over the study's; null leaves it out.
      intermediary: pretraining of each method, likewise.
    """

    model: BackboneModel = BackboneModel()
    tokenizer: TokenizerConfig | None = None
    start: str | dict[str, str] | None = AS_STUDY
    budgets: Annotated[
        tuple[Annotated[int, Field(ge=2, le=1024)], ...] | None,
        Field(json_schema_extra={"uniqueItems": True}),
    ] = None
    train_budgets: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    connectors: dict[str, ConnectorConfig] = dataclasses.field(default_factory=dict)
    stage1: TrainConfig | Literal["study"] | None = AS_STUDY
    intermediary: TrainConfig | Literal["study"] | None = AS_STUDY

    @property
    def stated(self) -> list[str]:
        """The settings that are its own, such as "stage1" and "model.vision"."""
        usual = vars(BackboneConfig(model=self.model))
        settings = [name for name, value in vars(self).items() if value != usual[name]]
        parts = [f"model.{name}" for name, part in vars(self.model).items() if part is not None]
        return settings + parts
