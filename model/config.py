"""A model's configuration. Frozen and hashable, so a configuration is static under `jit`.

The configuration of each part is defined next to that part; here they are joined and checked.
"""

import dataclasses
import typing

from infra.store.digest import NOT_IDENTITY
from model.connector import budgets
from model.connector.config import ConnectorConfig
from model.prompt.registry import PALIGEMMA, prompt_template
from model.prompt.template import PromptTemplate
from model.text.config import TextConfig
from model.text.registry import decoder_family
from model.vision.config import PositionInit, VisionConfig

Dtype = typing.Literal["float32", "bfloat16"]
Remat = typing.Literal["none", "minimal", "full"]
Projector = typing.Literal["linear", "mlp"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """An image tower, a connector and a decoder; the defaults are PaliGemma 2 3B's at 224 px.

    Attributes:
      vision: the image tower; in a study's config, the name of a family or of a published size may
        stand for its values.
      text: the decoder; likewise.
      connector: the module between them, which turns image features into soft tokens.
      attn_softcap: cap c of attention logits, c * tanh(x / c); 0 is off. On in pretraining; the
        paper turns it off in transfers, big_vision's transfer recipe keeps it.
      final_softcap: the same on output logits (published: 30 in pretraining, 0 in transfers).
      projector: layers from features to the decoder's width: one, "linear", or two with a GELU
        between them, "mlp", as in LLaVA-1.5.
      prompt: how questions, images and answers stand in a row: the name of a prompt template.
      projector_init: "zeros" as published, for pretrained towers; "xavier" for training from
        scratch, where zeros would hide the image from the decoder in the first steps.
      position_init: "normal" as published, or "sincos": fixed 2-D features as initial values, so
        that a tower trained from scratch tells places apart from the start. Both are trained.
      dtype: dtype of activations and matrix products; parameters, norms and softmax stay float32.
      remat: what the backward pass recomputes. "none": nothing; every array stays in memory.
        "minimal": cheap arrays; outputs of attention and the decoder's matrix products are kept.
        "full": each block, from its input; least memory, about 1.3 x the arithmetic.
      scan_layers: whether one compiled body serves all blocks of a tower, which compiles fast for
        deep towers. Off unrolls the blocks and lets the last one skip rows that no output reads,
        which is faster for models a few blocks deep.
      loss_chunk: number of positions per row whose vocabulary-wide logits exist at a time [tokens].

    The last three change memory and speed, and results only by the rounding of sums, so they are no
    part of a step's identity.
    """

    vision: VisionConfig = VisionConfig()
    text: TextConfig = TextConfig()
    connector: ConnectorConfig = ConnectorConfig()
    attn_softcap: float = 50.0
    final_softcap: float = 30.0
    projector: Projector = "linear"
    prompt: str = PALIGEMMA
    projector_init: typing.Literal["zeros", "xavier"] = "zeros"
    position_init: PositionInit = "normal"
    dtype: Dtype = "float32"
    remat: Remat = dataclasses.field(default="full", metadata=NOT_IDENTITY)
    scan_layers: bool = dataclasses.field(default=True, metadata=NOT_IDENTITY)
    loss_chunk: int = dataclasses.field(default=16, metadata=NOT_IDENTITY)

    def __post_init__(self) -> None:
        for name in ("attn_softcap", "final_softcap"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 (off) or above, got {getattr(self, name)}.")
            if getattr(self, name) and not decoder_family(self.text.family).softcaps:
                raise ValueError(
                    f"{name} must be 0 (off) with text.family {self.text.family!r}, which has "
                    f"none, got {getattr(self, name)}."
                )
        if self.position_init == "sincos" and self.vision.width % 4:
            raise ValueError(
                f"vision.width must be a multiple of 4 for position_init 'sincos' (sine and cosine "
                f"of two axes), got {self.vision.width}."
            )
        if self.loss_chunk < 1:
            raise ValueError(f"loss_chunk must be at least 1, got {self.loss_chunk}.")
        if self.dtype not in typing.get_args(Dtype):
            raise ValueError(f"dtype must be float32 or bfloat16, got {self.dtype!r}.")
        if self.projector not in typing.get_args(Projector):
            raise ValueError(f"projector must be linear or mlp, got {self.projector!r}.")
        if self.remat not in typing.get_args(Remat):
            raise ValueError(f"remat must be none, minimal or full, got {self.remat!r}.")
        _ = self.template
        # Last: whether a connector fits depends on the sizes of the vision tower, checked by now.
        budgets.check_connector(self)

    @property
    def template(self) -> PromptTemplate:
        """The prompt template that it is asked in."""
        return prompt_template(self.prompt)

    def with_prompt(self, prompt: str | None) -> "ModelConfig":
        """Returns the model with another prompt template; None leaves its own."""
        return self if prompt is None else dataclasses.replace(self, prompt=prompt)
