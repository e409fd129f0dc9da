"""Parameter names of other codebases, and the layouts of their arrays.

One table, ours <-> big_vision <-> Hugging Face. big_vision stacks the layers of a tower on axis 0,
as we do; Hugging Face has a name per layer, `{i}` below, and stores linear weights transposed.
"""

import re
import typing
from collections.abc import Iterable

from model.checkpoint.layouts import (
    OIHW,
    ROWS,
    SAME,
    TRANSPOSED,
    Layout,
    heads_first,
    key_heads,
    merged_heads,
    query_heads,
    vision_heads,
)

LM_HEAD = "lm_head.weight"
"""Hugging Face's name of the output matrix, a copy of the embedding that only some files have."""
EMBEDDING, HUGGING_FACE_EMBEDDING = "text/embedding", "language_model.model.embed_tokens.weight"
"""Our and Hugging Face's name of the embedding, which may have more rows in other codebases."""


class ParameterName(typing.NamedTuple):
    """Names and layouts of one parameter.

    Attributes:
      ours: path in our nested dict, joined by "/".
      big_vision: key in an `.npz`, without a leading `params/`.
      big_vision_layout: layout of the array in big_vision, or of our part of it.
      hugging_face: key in safetensors, with `{i}` for the layer if every layer has one.
      hugging_face_layout: layout of the array in Hugging Face, of one layer.
      part: index on axis 1 of a big_vision array that holds several of our parameters; None if it
        holds only this one.
    """

    ours: str
    big_vision: str
    big_vision_layout: Layout
    hugging_face: str
    hugging_face_layout: Layout
    part: int | None = None


class NamesError(ValueError):
    """A file does not hold each parameter once, in its shape."""


def big_vision_keys(keys: Iterable[str]) -> dict[str, str]:
    """Returns a dict: key without `params/` -> key.

    If any key begins with `params/`, all others are left out: they belong to the optimizer.
    """
    names = list(keys)
    inside = [key for key in names if key.startswith("params/")]
    return {key.removeprefix("params/"): key for key in inside or names}


def hugging_face_keys(keys: Iterable[str]) -> dict[str, str]:
    """Returns a dict: name that the key had on the hub in 2024 -> key. Buffers are left out.

    Later releases of transformers renamed `language_model.model.` to `model.language_model.`, and
    `vision_tower.vision_model.` to `model.vision_tower.`.

    Raises:
      NamesError: if two keys mean the same parameter.
    """
    keys_of_names: dict[str, str] = {}
    for key in keys:
        if re.search(r"(position_ids|inv_freq)$", key):
            continue
        name = key.removeprefix("model.")
        name = re.sub(r"^language_model\.(?:model\.)?", _HF_TEXT, name)
        name = re.sub(r"^vision_tower\.(?:vision_model\.)?", _HF_IMG, name)
        name = LM_HEAD if name.endswith("lm_head.weight") else name
        if name in keys_of_names:
            raise NamesError(
                f"a checkpoint must hold {name} once, got {keys_of_names[name]} and {key}."
            )
        keys_of_names[name] = key
    return keys_of_names


_BV_IMG = "img/Transformer/encoderblock/"
_BV_ATTN = _BV_IMG + "MultiHeadDotProductAttention_0/"
_HF_IMG = "vision_tower.vision_model."
_HF_BLOCK = _HF_IMG + "encoder.layers.{i}."
_HF_TEXT = "language_model.model."
_HF_LAYER = _HF_TEXT + "layers.{i}."


def _vision_names() -> list[ParameterName]:
    patches, post = _HF_IMG + "embeddings.", _HF_IMG + "post_layernorm."
    # What the tower has once. Our patch kernel is big_vision's; torch's convolution puts the output
    # channels first.
    table = [
        ParameterName(
            "vision/patches/kernel",
            "img/embedding/kernel",
            SAME,
            patches + "patch_embedding.weight",
            OIHW,
        ),
        ParameterName(
            "vision/patches/bias",
            "img/embedding/bias",
            SAME,
            patches + "patch_embedding.bias",
            SAME,
        ),
        ParameterName(
            "vision/positions",
            "img/pos_embedding",
            ROWS,
            patches + "position_embedding.weight",
            SAME,
        ),
        ParameterName(
            "vision/norm/scale", "img/Transformer/encoder_norm/scale", SAME, post + "weight", SAME
        ),
        ParameterName(
            "vision/norm/bias", "img/Transformer/encoder_norm/bias", SAME, post + "bias", SAME
        ),
    ]
    # What every block has. Ours and big_vision's arrays hold all layers, stacked on axis 0;
    # Hugging Face has an array per layer, hence `{i}` in its names:
    #
    #     vision/blocks/mlp/up/kernel   (27, 1152, 4304)
    #     …layers.0.mlp.fc1.weight      (4304, 1152)      and 26 more
    for layer_name, bv, hf in (("attn_norm", "0", "layer_norm1"), ("mlp_norm", "1", "layer_norm2")):
        for part, hf_part in (("scale", "weight"), ("bias", "bias")):
            table.append(
                ParameterName(
                    f"vision/blocks/{layer_name}/{part}",
                    f"{_BV_IMG}LayerNorm_{bv}/{part}",
                    SAME,
                    f"{_HF_BLOCK}{hf}.{hf_part}",
                    SAME,
                )
            )
    for layer_name, bv, hf in (("up", "0", "fc1"), ("down", "1", "fc2")):
        table += _linear_names(
            f"vision/blocks/mlp/{layer_name}",
            f"{_BV_IMG}MlpBlock_0/Dense_{bv}",
            f"{_HF_BLOCK}mlp.{hf}",
        )
    # big_vision keeps the heads on an axis of their own; ours are merged, as Hugging Face's.
    for part, hf in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
        table += _linear_names(
            f"vision/blocks/attn/{part}",
            _BV_ATTN + part,
            f"{_HF_BLOCK}self_attn.{hf}",
            merged_heads(2, vision_heads),
            merged_heads(1, vision_heads),
        )
    out = "vision/blocks/attn/out", _BV_ATTN + "out", f"{_HF_BLOCK}self_attn.out_proj"
    return table + _linear_names(*out, merged_heads(1, vision_heads))


def _linear_names(
    ours: str, big_vision: str, hugging_face: str, kernel: Layout = SAME, bias: Layout = SAME
) -> list[ParameterName]:
    return [
        ParameterName(
            f"{ours}/kernel", f"{big_vision}/kernel", kernel, f"{hugging_face}.weight", TRANSPOSED
        ),
        ParameterName(f"{ours}/bias", f"{big_vision}/bias", bias, f"{hugging_face}.bias", SAME),
    ]


def _text_names() -> list[ParameterName]:
    attn, mlp = "llm/layers/attn/", "llm/layers/mlp/"
    keys = heads_first(key_heads)
    # big_vision packs two of our arrays into one; the number is the index of ours on axis 1:
    #
    #     kv_einsum/w     (layers, 2, …)   0 keys, 1 values
    #     gating_einsum   (layers, 2, …)   0 gate, 1 up
    rows: tuple[tuple[str, str, int | None, Layout, str], ...] = (
        ("query", attn + "q_einsum/w", None, heads_first(query_heads), "self_attn.q_proj"),
        ("key", attn + "kv_einsum/w", 0, keys, "self_attn.k_proj"),
        ("value", attn + "kv_einsum/w", 1, keys, "self_attn.v_proj"),
        ("out", attn + "attn_vec_einsum/w", None, merged_heads(1, query_heads), "self_attn.o_proj"),
        ("gate", mlp + "gating_einsum", 0, SAME, "mlp.gate_proj"),
        ("up", mlp + "gating_einsum", 1, SAME, "mlp.up_proj"),
        ("down", mlp + "linear", None, SAME, "mlp.down_proj"),
    )
    norms = (
        ("pre_attn_norm", "pre_attention_norm", "input_layernorm"),
        ("post_attn_norm", "post_attention_norm", "post_attention_layernorm"),
        ("pre_mlp_norm", "pre_ffw_norm", "pre_feedforward_layernorm"),
        ("post_mlp_norm", "post_ffw_norm", "post_feedforward_layernorm"),
    )
    table = [
        ParameterName(
            f"text/blocks/{layer_name}", bv, layout, f"{_HF_LAYER}{hf}.weight", TRANSPOSED, part
        )
        for layer_name, bv, part, layout, hf in rows
    ]
    for layer_name, bv, hf in norms:
        path = f"text/blocks/{layer_name}/scale"
        table.append(
            ParameterName(path, f"llm/layers/{bv}/scale", SAME, f"{_HF_LAYER}{hf}.weight", SAME)
        )
    # Beside the blocks: the embedding, which is the output matrix, too, and the last norm.
    embedding, norm = HUGGING_FACE_EMBEDDING, _HF_TEXT + "norm.weight"
    table.append(ParameterName(EMBEDDING, "llm/embedder/input_embedding", SAME, embedding, SAME))
    table.append(ParameterName("text/final_norm/scale", "llm/final_norm/scale", SAME, norm, SAME))
    return table


TABLE: tuple[ParameterName, ...] = (
    *_vision_names(),
    *_text_names(),
    *_linear_names("projector", "img/head", "multi_modal_projector.linear"),
)
