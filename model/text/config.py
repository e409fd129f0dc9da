"""The configuration of a decoder, and the fields of a model that its code reads."""

import dataclasses
import typing

from model.check import check_positive
from model.text.registry import decoder_family


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary positions are stretched beyond the length that a decoder was first trained on.

    Attributes:
      kind: "linear" divides all positions; "llama3" only the slow rotations, those that turn less
        than `low_freq_factor` times in `original_length` tokens, and blends up to
        `high_freq_factor` times.
      factor: by how much positions are divided.
      low_freq_factor: turns below which a rotation is divided in full.
      high_freq_factor: turns above which it is not divided.
      original_length: length of the first training [tokens].

    Source: transformers `modeling_rope_utils.py`.
    """

    kind: typing.Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 8192

    def __post_init__(self) -> None:
        check_positive(self, "text.rope_scaling")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextConfig:
    """A decoder; the defaults are Gemma 2's 2B one with PaliGemma's vocabulary.

    Attributes:
      family: its family, a name in `registry.DECODERS`, which says what layers a block has. In a
        study's config it may be a published size: unstated fields are those of that size, or of
        the family's first.
      vocab_size: rows of the embedding, location and segmentation tokens included.
      width: channels of the residual stream.
      depth: transformer blocks.
      mlp_dim: hidden channels of the gated MLP.
      num_heads: query heads.
      num_kv_heads: key and value heads; must divide `num_heads`.
      head_dim: channels of a head; even, as RoPE rotates pairs.
      rope_base: base wavelength of the rotary positions.
      rope_scaling: how they are stretched; None is not at all.
      local_rope_base: base wavelength in the family's local layers, where nothing is stretched; 0
        gives them the positions of the others.
      sliding_window: reach of the family's local layers [tokens]; 0 lets all layers see everything,
        as big_vision trains PaliGemma 2 (Gemma 2 itself and transformers: 4096).
      query_scale: queries are divided by the root of this; 0 takes `head_dim`.
      norm_eps: added to the mean square in norms.
      tied: whether the output matrix is the embedding.
    """

    family: str = "gemma2"
    vocab_size: int = 257_152
    width: int = 2304
    depth: int = 26
    mlp_dim: int = 9216
    num_heads: int = 8
    num_kv_heads: int = 4
    head_dim: int = 256
    rope_base: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    local_rope_base: float = 0.0
    sliding_window: int = 0
    query_scale: float = 0.0
    norm_eps: float = 1e-6
    tied: bool = True

    def __post_init__(self) -> None:
        decoder_family(self.family)
        check_positive(self, "text", zero_ok=("sliding_window", "local_rope_base", "query_scale"))
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"text.num_kv_heads must divide text.num_heads={self.num_heads}, "
                f"got {self.num_kv_heads}."
            )
        if self.head_dim % 2:
            raise ValueError(f"text.head_dim must be even (rotary pairs), got {self.head_dim}.")

    @property
    def local_layers(self) -> tuple[bool, ...]:
        """Which layers see only the last `sliding_window` positions."""
        period = decoder_family(self.family).local_period
        return tuple((i + 1) % period != 0 for i in range(self.depth))


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
