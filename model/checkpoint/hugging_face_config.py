"""Reading and writing of transformers' `config.json` for PaliGemma 2.

Defaults are those of transformers' Gemma2Config and SiglipVisionConfig: files leave out fields
that equal them.
"""

import typing
from collections.abc import Mapping
from typing import Any

import numpy as np

from model.config import ModelConfig
from pipelines.records.codes import EXTRA_TOKENS

GEMMA_PIECES = 256_000
"""Number of pieces in Gemma's embedding; published files have up to 128 unused rows more."""
VOCAB_SIZE = GEMMA_PIECES + len(EXTRA_TOKENS)
"""Number of embedding rows that are in use in every published PaliGemma."""
PADDED_ROWS = 64
"""Number of rows that transformers adds, for `<image>` and alignment. Source: its converter."""

ORIGIN, ORIGIN_ROWS = "hugging_face.json", "hugging_face_rows.npy"
"""Files that an import keeps beside our parameters: the original config, and the embedding rows
above the vocabulary. With them, an export gives the same tensors again."""

_EPSILON = 1e-6
_FIXED = (
    ("text_config", "rms_norm_eps", _EPSILON),
    ("text_config", "attention_bias", False),
    ("text_config", "hidden_activation", "gelu_pytorch_tanh"),
    ("vision_config", "layer_norm_eps", _EPSILON),
    ("vision_config", "hidden_act", "gelu_pytorch_tanh"),
)
"""Settings that are built into our model: section, field, the only accepted value."""


class CheckpointFacts(typing.NamedTuple):
    """Facts that the shapes in a checkpoint do not show.

    Attributes:
      vision_heads: heads of the image tower.
      num_heads: query heads of the decoder.
      num_kv_heads: key and value heads of the decoder.
      head_dim: channels of a decoder head.
      vocab_size: rows of the embedding that count; the file may have more.
      attn_softcap, final_softcap: soft-caps of the attention's and the output's logits; 0 is off.
      sliding_window: attention window of every second layer [tokens]; 0 is none.
      rope_base: base wavelength of the rotary positions.
    """

    vision_heads: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int = VOCAB_SIZE
    attn_softcap: float = 50.0
    final_softcap: float = 30.0
    sliding_window: int = 0
    rope_base: float = 10_000.0


def read_config(config: Mapping[str, Any]) -> CheckpointFacts:
    """Returns the facts of a `config.json`.

    Raises:
      ValueError: if it is not a PaliGemma 2, or has settings that our model does not support.
    """
    text, vision = config.get("text_config", {}), config.get("vision_config", {})
    kinds = config.get("model_type"), text.get("model_type")
    if kinds != ("paligemma", "gemma2"):
        raise ValueError(f"config.json must be of paligemma with gemma2 text, got {kinds}.")
    for part, field, accepted in _FIXED:
        value = config[part].get(field, accepted) if part in config else accepted
        if value != accepted:
            raise ValueError(f"config.json: {part}.{field} must be {accepted}, got {value}.")
    # transformers writes only settings that differ from its defaults, so what is absent has the
    # default of its config classes.
    head_dim = text.get("head_dim", 256)
    scale = text.get("query_pre_attn_scalar", 256)
    # Our decoder divides queries by the root of `head_dim`; some sizes of Gemma 2 by another
    # number.
    if scale != head_dim:
        raise ValueError(
            f"config.json: text_config.query_pre_attn_scalar must equal head_dim={head_dim} "
            f"(Gemma-2 2B and 9B), got {scale}."
        )
    return CheckpointFacts(
        vision_heads=vision.get("num_attention_heads", 12),
        num_heads=text.get("num_attention_heads", 8),
        num_kv_heads=text.get("num_key_value_heads", 4),
        head_dim=head_dim,
        vocab_size=config.get("vocab_size") or config.get("_vocab_size") or VOCAB_SIZE,
        # null is off; a setting that is absent has the default.
        attn_softcap=float(text.get("attn_logit_softcapping", 50.0) or 0.0),
        final_softcap=float(text.get("final_logit_softcapping", 30.0) or 0.0),
        sliding_window=_window(text),
        rope_base=_rope_base(text),
    )


def _window(text: Mapping[str, Any]) -> int:
    window = int(text.get("sliding_window", 4096) or 0)
    layers = text.get("layer_types")
    if layers is None:
        return window
    if all(layer == "full_attention" for layer in layers):
        return 0
    every_second = [("sliding", "full")[i % 2] + "_attention" for i in range(len(layers))]
    if layers != every_second:
        raise ValueError(
            "config.json: text_config.layer_types must be sliding_attention and full_attention "
            f"in turn, or full_attention alone, got {layers}."
        )
    return window


def _rope_base(text: Mapping[str, Any]) -> float:
    rope = text.get("rope_parameters") or {}
    kind = rope.get("rope_type", "default")
    if kind != "default":
        raise ValueError(f"config.json: text_config's rope_type must be default, got {kind!r}.")
    return float(rope.get("rope_theta", text.get("rope_theta", 10_000.0)))


def write_config(cfg: ModelConfig, rows: int, dtype: np.dtype) -> dict[str, Any]:
    """Returns the `config.json` of a model.

    Args:
      cfg: a vanilla model.
      rows: number of rows of the written embedding, including those above the vocabulary.
      dtype: type of the tensors.
    """
    vision, text = cfg.vision, cfg.text
    kinds = [("sliding" if i % 2 == 0 else "full") + "_attention" for i in range(text.depth)]
    # The same field under two names: older releases of transformers read `torch_dtype`.
    types = {"dtype": dtype.name, "torch_dtype": dtype.name}
    return {
        "architectures": ["PaliGemmaForConditionalGeneration"],
        "model_type": "paligemma",
        **types,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "hidden_size": text.width,
        "projection_dim": text.width,
        # The id behind the last row in use: no row of the embedding is a placeholder's own.
        "image_token_index": text.vocab_size,
        "vocab_size": text.vocab_size,
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "gemma2",
            # With the rows that only fill up; the size above counts the tokens in use.
            "vocab_size": rows,
            "hidden_size": text.width,
            "intermediate_size": text.mlp_dim,
            "num_hidden_layers": text.depth,
            "num_attention_heads": text.num_heads,
            "num_key_value_heads": text.num_kv_heads,
            "head_dim": text.head_dim,
            "query_pre_attn_scalar": text.head_dim,
            "num_image_tokens": vision.num_patches,
            # Off is 0 here, and null there.
            "attn_logit_softcapping": cfg.attn_softcap or None,
            "final_logit_softcapping": cfg.final_softcap or None,
            # Not 0 where no layer slides: `layer_types` says which do.
            "sliding_window": text.sliding_window or 4096,
            "layer_types": kinds if text.sliding_window else ["full_attention"] * text.depth,
            "rope_theta": text.rope_base,
            "rope_parameters": {"rope_type": "default", "rope_theta": text.rope_base},
            "hidden_activation": "gelu_pytorch_tanh",
            "rms_norm_eps": _EPSILON,
            "max_position_embeddings": 8192,
            "attention_bias": False,
            "tie_word_embeddings": True,
            **types,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "image_size": vision.image_px,
            "patch_size": vision.patch_px,
            "num_channels": 3,
            "num_image_tokens": vision.num_patches,
            "hidden_size": vision.width,
            "intermediate_size": vision.mlp_dim,
            "num_hidden_layers": vision.depth,
            "num_attention_heads": vision.num_heads,
            "projection_dim": text.width,
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": _EPSILON,
            "vision_use_head": False,
            **types,
        },
    }
