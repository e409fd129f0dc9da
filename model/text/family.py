"""The facts that all sizes of a family of decoders share."""

import dataclasses
import typing
from collections.abc import Mapping

Activation = typing.Literal["gelu_tanh", "silu"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderFamily:
    """A family of decoders, whose blocks have the same layers. Each is `FAMILY` of its folder.

    Attributes:
      norms_after: whether a norm comes after attention and after the MLP too, not only before.
      head_norms: whether each head's queries and keys are normalized, before they are rotated.
      norm_offset: what a norm adds to its stored scale.
      activation: activation of the gated MLP.
      scaled_embedding: whether embedded tokens are multiplied by the root of the width.
      softcaps: whether it was pretrained with soft-caps of attention's and output's logits.
      local_period: of this many layers in turn, the last sees everything and the others the last
        `sliding_window` positions; 1 if all see everything.
      whole_prefix: whether rows that see each other, as those of a prefix, do so at any distance in
        local layers, too (PaliGemma 2 in transformers); else a window ends ahead as it does behind.
      sizes: name of a published size -> fields of `TextConfig`; the first is the family's default.
    """

    norms_after: bool
    head_norms: bool
    norm_offset: float
    activation: Activation
    scaled_embedding: bool
    softcaps: bool
    local_period: int
    whole_prefix: bool
    sizes: Mapping[str, Mapping[str, typing.Any]]
