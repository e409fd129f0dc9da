"""Reading of transformers' `config.json`, and writing of PaliGemma 2's.

Files leave out fields that equal the defaults of transformers' config classes. What a section says
is read by its family's `hugging_face` module.
"""

import typing
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from infra.references import load_module
from model.checkpoint.names import table
from model.config import ModelConfig, Projector
from model.config_fields import check_fixed
from model.layouts import Names
from model.prompt.registry import PALIGEMMA
from model.text.registry import DECODERS
from model.vision.registry import TOWERS
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


class CheckpointFacts(typing.NamedTuple):
    """Facts that the shapes in a checkpoint do not show.

    Attributes:
      vision: fields of `VisionConfig`, such as its family and heads.
      text: fields of `TextConfig`.
      vocab_size: rows of the embedding that count; the file may have more.
      attn_softcap, final_softcap: soft-caps of the attention's and the output's logits; 0 is off.
      projector: layers between them.
      prompt: the prompt template that it was trained in.
      has_extra_tokens: whether the vocabulary has PaliGemma's tokens of places and masks.
    """

    vision: Mapping[str, Any]
    text: Mapping[str, Any]
    vocab_size: int = VOCAB_SIZE
    attn_softcap: float = 50.0
    final_softcap: float = 30.0
    projector: Projector = "linear"
    prompt: str = PALIGEMMA
    has_extra_tokens: bool = True

    @property
    def names(self) -> Names:
        """The names of the parameters of such a checkpoint."""
        families = self.vision.get("family", "siglip"), self.text.get("family", "gemma2")
        return table(*families, tied=self.text.get("tied", True), projector=self.projector)


class _Container(typing.NamedTuple):
    """A model of transformers that has a tower and a decoder, and that we have as a whole.

    Attributes:
      projector: layers between them.
      prompt: its prompt template.
      fixed: settings that are built into our model.
    """

    projector: Projector
    prompt: str
    fixed: Mapping[str, Any]


_CONTAINERS = {
    "paligemma": _Container("linear", PALIGEMMA, {}),
    # Features are those before the last block, without the class token: the family's own.
    "llava": _Container(
        "mlp",
        "llava",
        {
            "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default",
            "projector_hidden_act": "gelu",
            "multimodal_projector_bias": True,
        },
    ),
}


_TOWERS_WITHIN = {
    "siglip": "siglip_vision_model",
    "siglip2": "siglip2_vision_model",
    "clip": "clip_vision_model",
    "paligemma": "siglip_vision_model",
    "llava": "clip_vision_model",
    "gemma3": "siglip_vision_model",
}
"""`model_type` of a model with a tower in it -> that of its tower, where that has none."""
_DECODERS_WITHIN = {"paligemma": "gemma", "llava": "llama", "gemma3": "gemma3_text"}
"""The same for decoders."""


class DecoderFacts(typing.NamedTuple):
    """A decoder's fields of `TextConfig`, and soft-caps of attention's and the output's logits."""

    fields: dict[str, Any]
    softcaps: tuple[float, float]


def read_config(config: Mapping[str, Any]) -> CheckpointFacts:
    """Returns the facts of a `config.json`.

    Raises:
      ValueError: if its model, tower or decoder is none of ours, or has settings that ours does not
        support.
    """
    kind = config.get("model_type")
    if kind not in _CONTAINERS:
        accepted = " or ".join(_CONTAINERS)
        raise ValueError(f"config.json: model_type must be {accepted}, got {kind!r:.60}.")
    container = _CONTAINERS[kind]
    check_fixed(config, kind, container.fixed)
    decoder = read_decoder(config)
    rows = config.get("vocab_size") or config.get("_vocab_size")
    text_rows = _config_json_section(config, "text_config").get("vocab_size", VOCAB_SIZE)
    return CheckpointFacts(
        vision=read_tower(config),
        text=decoder.fields,
        vocab_size=rows or (VOCAB_SIZE if kind == "paligemma" else text_rows),
        attn_softcap=decoder.softcaps[0],
        final_softcap=decoder.softcaps[1],
        projector=container.projector,
        prompt=container.prompt,
        has_extra_tokens=kind == "paligemma",
    )


def read_tower(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `VisionConfig` that the `config.json` of a tower, or with one, says.

    Raises:
      ValueError: see `read_config`.
    """
    section = _tower_or_decoder_section(config, "vision_config", _TOWERS_WITHIN)
    family, reader = _family_config_reader("vision", TOWERS, section)
    return {**reader.read(section), "family": family}


def read_decoder(config: Mapping[str, Any]) -> DecoderFacts:
    """Returns the facts that the `config.json` of a decoder, or with one, says.

    Raises:
      ValueError: see `read_config`.
    """
    section = _tower_or_decoder_section(config, "text_config", _DECODERS_WITHIN)
    family, reader = _family_config_reader("text", DECODERS, section)
    softcaps = reader.read_softcaps(section) if hasattr(reader, "read_softcaps") else (0.0, 0.0)
    return DecoderFacts({**reader.read(section), "family": family}, softcaps)


def _tower_or_decoder_section(
    config: Mapping[str, Any], name: str, within: Mapping[str, str]
) -> Mapping[str, Any]:
    """Returns the section of a tower or a decoder; of one alone, the whole config is about it."""
    kind = str(config.get("model_type"))
    if name not in config and kind not in within:
        return config
    default = {"model_type": within[kind]} if kind in within else {}
    return {**default, **_config_json_section(config, name)}


def _config_json_section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name, {})
    if not isinstance(section, Mapping):
        raise ValueError(f"config.json: {name} must be a mapping, got {section!r:.60}.")
    return section


def _family_config_reader(
    room: str, families: Iterable[str], section: Mapping[str, Any]
) -> tuple[str, ModuleType]:
    """Returns the family of a tower or a decoder, and its module that reads the section."""
    readers = {name: load_module(f"model.{room}.{name}.hugging_face") for name in families}
    kind = section.get("model_type")
    for name, reader in readers.items():
        if kind in reader.MODEL_TYPES:
            return name, reader
    accepted = ", ".join(kind for reader in readers.values() for kind in reader.MODEL_TYPES)
    raise ValueError(
        f"config.json: {room}_config.model_type must be one of {accepted}, got {kind!r:.60}."
    )


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
            "query_pre_attn_scalar": text.query_scale or text.head_dim,
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
