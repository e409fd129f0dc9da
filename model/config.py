"""What a model is made of. Frozen and hashable, so a configuration is static under `jit`."""

import dataclasses
import typing

from model.connector import budgets

Dtype = typing.Literal["float32", "bfloat16"]


def _check_positive(cfg: object, path: str, zero_ok: tuple[str, ...] = ()) -> None:
    for field in dataclasses.fields(cfg):  # pyright: ignore[reportArgumentType]
        value = getattr(cfg, field.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if value < 0 or (value == 0 and field.name not in zero_ok):
            raise ValueError(f"{path}.{field.name} must be positive, got {value}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """A SigLIP image tower; the defaults are So400m/14 at 224 px.

    Attributes:
      image_px: side of the square input [pixels].
      patch_px: side of a square patch [pixels].
      width: channels of a feature.
      depth: transformer blocks.
      mlp_dim: hidden channels of a block's MLP.
      num_heads: attention heads; must divide `width`.
    """

    image_px: int = 224
    patch_px: int = 14
    width: int = 1152
    depth: int = 27
    mlp_dim: int = 4304
    num_heads: int = 16

    def __post_init__(self) -> None:
        _check_positive(self, "vision")
        if self.image_px % self.patch_px:
            raise ValueError(
                f"vision.image_px must be a multiple of vision.patch_px={self.patch_px}, "
                f"got {self.image_px}."
            )
        if self.width % self.num_heads:
            raise ValueError(
                f"vision.num_heads must divide vision.width={self.width}, got {self.num_heads}."
            )

    @property
    def grid(self) -> int:
        """Patches along one side."""
        return self.image_px // self.patch_px

    @property
    def num_patches(self) -> int:
        """Features per image."""
        return self.grid**2


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
      sliding_window: reach of every second layer, from the first [tokens]; 0 means all of them
        see everything, as big_vision trains PaliGemma 2 (Gemma 2 itself and transformers: 4096).
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
        _check_positive(self, "text", zero_ok=("sliding_window",))
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"text.num_kv_heads must divide text.num_heads={self.num_heads}, "
                f"got {self.num_kv_heads}."
            )
        if self.head_dim % 2:
            raise ValueError(f"text.head_dim must be even (rotary pairs), got {self.head_dim}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectorConfig:
    """How image features become soft tokens.

    What the papers leave open has its default marked [inferred].

    Attributes:
      kind: the method.
      num_heads: attention heads; must divide the vision width (papers: 12 on 1152).
      mlp_dim: hidden channels of the MLP of PARCEL and of the capacity controls; 0 means the
        vision tower's.
      buckets: declared shapes [tokens per image]; empty means the method's own list.
      mqt_keys: what MQT's queries attend to: "content", features plus positions [inferred], or
        "positional", positions alone, as the released MQT-LLaVA code does. For `mqt_sa` too.
      parcel_key_positions: whether PARCEL adds fixed positions to its cross-attention keys; off
        [inferred], as SigLIP features carry positions already. For its ablations too.
      query_std: deviation of the initial query bank [inferred].
    """

    kind: budgets.Kind = "vanilla"
    num_heads: int = 12
    mlp_dim: int = 0
    buckets: tuple[int, ...] = ()
    mqt_keys: typing.Literal["content", "positional"] = "content"
    parcel_key_positions: bool = False
    query_std: float = 0.02

    def __post_init__(self) -> None:
        kinds = typing.get_args(budgets.Kind)
        if self.kind not in kinds:
            raise ValueError(
                f"connector.kind must be one of {', '.join(kinds)}, got {self.kind!r}."
            )
        _check_positive(self, "connector", zero_ok=("mlp_dim",))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A PaliGemma-2-shaped model; the defaults are the published 3B one at 224 px.

    Attributes:
      vision: the image tower.
      text: the decoder.
      connector: what lies between them.
      attn_softcap: cap c of attention logits, c * tanh(x / c); 0 is off. On in pretraining; the
        paper turns it off in transfers, big_vision's transfer recipe keeps it.
      final_softcap: the same on output logits (published: 30 in pretraining, 0 in transfers).
      projector_init: "zeros" as published, for towers that are pretrained; "xavier" for training
        from nothing, where zeros would keep the image from the decoder for the first steps.
      position_init: "normal" as published, or "sincos", fixed 2-D features to start from: a tower
        that starts from nothing then tells places apart from the first steps. Learned on in both.
      dtype: of activations and matrix products; parameters, norms and softmax stay float32.
      remat: recompute blocks in the backward pass: less memory, about 1.3 x the arithmetic.
      scan_layers: one program for all blocks of a tower: compiles fast at depth. Off unrolls them,
        and lets the last block skip what no output reads: faster for models a few blocks deep.
      loss_chunk: positions of each row whose vocabulary-wide logits exist at a time [tokens].
    """

    vision: VisionConfig = VisionConfig()
    text: TextConfig = TextConfig()
    connector: ConnectorConfig = ConnectorConfig()
    attn_softcap: float = 50.0
    final_softcap: float = 30.0
    projector_init: typing.Literal["zeros", "xavier"] = "zeros"
    position_init: typing.Literal["normal", "sincos"] = "normal"
    dtype: Dtype = "float32"
    remat: bool = True
    scan_layers: bool = True
    loss_chunk: int = 16

    def __post_init__(self) -> None:
        for name in ("attn_softcap", "final_softcap"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 (off) or above, got {getattr(self, name)}.")
        if self.position_init == "sincos" and self.vision.width % 4:
            raise ValueError(
                f"vision.width must be a multiple of 4 for position_init 'sincos' (sine and cosine "
                f"of two axes), got {self.vision.width}."
            )
        if self.loss_chunk < 1:
            raise ValueError(f"loss_chunk must be at least 1, got {self.loss_chunk}.")
        if self.dtype not in typing.get_args(Dtype):
            raise ValueError(f"dtype must be float32 or bfloat16, got {self.dtype!r}.")
        self._check_connector()

    def _check_connector(self) -> None:
        kind, heads, width = self.connector.kind, self.connector.num_heads, self.vision.width
        queries = kind not in budgets.POOLED
        if (queries or kind == "m3_sa") and width % heads:
            raise ValueError(f"connector.num_heads must divide vision.width={width}, got {heads}.")
        if queries and width % 4:
            raise ValueError(
                f"vision.width must be a multiple of 4 for {kind!r} (sine and cosine of two "
                f"axes), got {width}."
            )
        budgets.check_grid(kind, self.vision.grid)
        budgets.check_buckets(self)
