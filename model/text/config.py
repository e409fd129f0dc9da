"""The configuration of a decoder, and the fields of a model that its code reads."""

import dataclasses
import typing

from model.check import check_positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextConfig:
    """A Gemma-2 decoder; the defaults are the 2B one with PaliGemma's vocabulary.

    Attributes:
      vocab_size: rows of the tied embedding, location and segmentation tokens included.
      width: channels of the residual stream.
      depth: transformer blocks.
      mlp_dim: hidden channels of the gated MLP.
      num_heads: query heads.
      num_kv_heads: key and value heads; must divide `num_heads`.
      head_dim: channels of a head; even, as RoPE rotates pairs.
      rope_base: base wavelength of the rotary positions.
      sliding_window: reach of every second layer, starting with the first [tokens]; 0 lets all
        layers see everything, as big_vision trains PaliGemma 2 (Gemma 2 itself and transformers:
        4096).
    """

    vocab_size: int = 257_152
    width: int = 2304
    depth: int = 26
    mlp_dim: int = 9216
    num_heads: int = 8
    num_kv_heads: int = 4
    head_dim: int = 256
    rope_base: float = 10_000.0
    sliding_window: int = 0

    def __post_init__(self) -> None:
        check_positive(self, "text", zero_ok=("sliding_window",))
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"text.num_kv_heads must divide text.num_heads={self.num_heads}, "
                f"got {self.num_kv_heads}."
            )
        if self.head_dim % 2:
            raise ValueError(f"text.head_dim must be even (rotary pairs), got {self.head_dim}.")


class DecoderConfig(typing.Protocol):
    """The fields of a model that the decoder reads; see `vision.config.TowerConfig`."""

    @property
    def text(self) -> TextConfig: ...
    @property
    def attn_softcap(self) -> float: ...
    @property
    def final_softcap(self) -> float: ...
    @property
    def remat(self) -> str: ...
    @property
    def scan_layers(self) -> bool: ...
    @property
    def loss_chunk(self) -> int: ...
