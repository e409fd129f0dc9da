"""Parameter names of other codebases, and what turns their arrays into ours.

One table, ours <- big_vision <- Hugging Face. big_vision stacks the layers of a tower on axis 0, as
we do; Hugging Face has a name per layer, `{i}` below, and stores linear weights transposed.
"""

import collections
import re
import typing
from collections.abc import Callable, Mapping

import numpy as np

Params = dict[str, typing.Any]
Change = Callable[[np.ndarray], np.ndarray]


class Name(typing.NamedTuple):
    """One parameter.

    Attributes:
      ours: path in our nested dict, joined by "/".
      big_vision: key in an `.npz`, without a leading `params/`.
      from_big_vision: gives our array from the whole big_vision one.
      hugging_face: key in safetensors, `{i}` where there is one per layer.
      from_hugging_face: gives our array from one layer's.
    """

    ours: str
    big_vision: str
    from_big_vision: Change
    hugging_face: str
    from_hugging_face: Change


def from_big_vision(arrays: Mapping[str, np.ndarray]) -> Params:
    """Returns our nested dict from the arrays of a big_vision PaliGemma 2 checkpoint.

    Raises:
      ValueError: naming the keys that are missing, or left over.
    """
    found = {key.removeprefix("params/"): array for key, array in arrays.items()}
    _check_keys({name.big_vision for name in TABLE}, set(found), "big_vision")
    return _nest({n.ours: n.from_big_vision(found[n.big_vision]) for n in TABLE})


def from_hugging_face(arrays: Mapping[str, np.ndarray]) -> Params:
    """Returns our nested dict from the tensors of a Hugging Face PaliGemma 2 checkpoint.

    Raises:
      ValueError: naming the keys that are missing, or left over.
    """
    layers: dict[str, dict[int, np.ndarray]] = collections.defaultdict(dict)
    for key, array in arrays.items():
        template, index = _template(key)
        layers[template][index] = array
    _check_keys({name.hugging_face for name in TABLE}, set(layers), "Hugging Face")
    flat = {}
    for name in TABLE:
        parts = layers[name.hugging_face]
        ours = [name.from_hugging_face(parts[i]) for i in sorted(parts)]
        flat[name.ours] = np.stack(ours) if "{i}" in name.hugging_face else ours[0]
    return _nest(flat)


def _template(key: str) -> tuple[str, int]:
    match = re.search(r"layers\.(\d+)\.", key)
    if match is None:
        return key, 0
    return key.replace(match[0], "layers.{i}."), int(match[1])


def _check_keys(expected: set[str], found: set[str], origin: str) -> None:
    missing, extra = sorted(expected - found), sorted(found - expected)
    if missing or extra:
        raise ValueError(
            f"a {origin} checkpoint must hold each parameter once, got missing {missing} "
            f"and unknown {extra}."
        )


def _nest(flat: Mapping[str, np.ndarray]) -> Params:
    nested: Params = {}
    for path, array in flat.items():
        *parents, leaf = path.split("/")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = array
    return nested


def _same(x: np.ndarray) -> np.ndarray:
    return x


def _transposed(x: np.ndarray) -> np.ndarray:
    return x.T


def _flatten(first: int) -> Change:
    """Merges axes `first` and `first + 1`: heads and their channels."""
    return lambda x: x.reshape(*x.shape[:first], -1, *x.shape[first + 2 :])


def _heads_out(x: np.ndarray) -> np.ndarray:
    """Turns (layers, heads, width, channels) into (layers, width, heads * channels)."""
    return _flatten(2)(x.transpose(0, 2, 1, 3))


_BV_IMG = "img/Transformer/encoderblock/"
_BV_ATTN = _BV_IMG + "MultiHeadDotProductAttention_0/"
_HF_IMG = "vision_tower.vision_model."
_HF_BLOCK = _HF_IMG + "encoder.layers.{i}."
_HF_TEXT = "language_model.model."
_HF_LAYER = _HF_TEXT + "layers.{i}."


def _vision() -> list[Name]:
    patches, post = _HF_IMG + "embeddings.", _HF_IMG + "post_layernorm."
    table = [
        Name("vision/patches/kernel", "img/embedding/kernel", _same,
             patches + "patch_embedding.weight", lambda x: x.transpose(2, 3, 1, 0)),
        Name("vision/patches/bias", "img/embedding/bias", _same,
             patches + "patch_embedding.bias", _same),
        Name("vision/positions", "img/pos_embedding", lambda x: x[0],
             patches + "position_embedding.weight", _same),
        Name("vision/norm/scale", "img/Transformer/encoder_norm/scale", _same,
             post + "weight", _same),
        Name("vision/norm/bias", "img/Transformer/encoder_norm/bias", _same, post + "bias", _same),
    ]  # fmt: skip
    for ours, bv, hf in (("attn_norm", "0", "layer_norm1"), ("mlp_norm", "1", "layer_norm2")):
        for part, hf_part in (("scale", "weight"), ("bias", "bias")):
            table.append(
                Name(f"vision/blocks/{ours}/{part}", f"{_BV_IMG}LayerNorm_{bv}/{part}", _same,
                     f"{_HF_BLOCK}{hf}.{hf_part}", _same)
            )  # fmt: skip
    for ours, bv, hf in (("up", "0", "fc1"), ("down", "1", "fc2")):
        table += _linear(f"vision/blocks/mlp/{ours}", f"{_BV_IMG}MlpBlock_0/Dense_{bv}",
                         f"{_HF_BLOCK}mlp.{hf}")  # fmt: skip
    for part, hf in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
        table += _linear(f"vision/blocks/attn/{part}", _BV_ATTN + part,
                         f"{_HF_BLOCK}self_attn.{hf}", _flatten(2), _flatten(1))  # fmt: skip
    out = "vision/blocks/attn/out", _BV_ATTN + "out", f"{_HF_BLOCK}self_attn.out_proj"
    return table + _linear(*out, _flatten(1))


def _linear(
    ours: str, big_vision: str, hugging_face: str, kernel: Change = _same, bias: Change = _same
) -> list[Name]:
    return [
        Name(f"{ours}/kernel", f"{big_vision}/kernel", kernel,
             f"{hugging_face}.weight", _transposed),
        Name(f"{ours}/bias", f"{big_vision}/bias", bias, f"{hugging_face}.bias", _same),
    ]  # fmt: skip


def _text() -> list[Name]:
    attn, mlp = "llm/layers/attn/", "llm/layers/mlp/"
    rows: tuple[tuple[str, str, Change, str], ...] = (
        ("query", attn + "q_einsum/w", _heads_out, "self_attn.q_proj"),
        ("key", attn + "kv_einsum/w", lambda x: _heads_out(x[:, 0]), "self_attn.k_proj"),
        ("value", attn + "kv_einsum/w", lambda x: _heads_out(x[:, 1]), "self_attn.v_proj"),
        ("out", attn + "attn_vec_einsum/w", _flatten(1), "self_attn.o_proj"),
        ("gate", mlp + "gating_einsum", lambda x: x[:, 0], "mlp.gate_proj"),
        ("up", mlp + "gating_einsum", lambda x: x[:, 1], "mlp.up_proj"),
        ("down", mlp + "linear", _same, "mlp.down_proj"),
    )
    norms = (
        ("pre_attn_norm", "pre_attention_norm", "input_layernorm"),
        ("post_attn_norm", "post_attention_norm", "post_attention_layernorm"),
        ("pre_mlp_norm", "pre_ffw_norm", "pre_feedforward_layernorm"),
        ("post_mlp_norm", "post_ffw_norm", "post_feedforward_layernorm"),
    )
    table = [
        Name(f"text/blocks/{ours}", bv, change, f"{_HF_LAYER}{hf}.weight", _transposed)
        for ours, bv, change, hf in rows
    ]
    for ours, bv, hf in norms:
        path = f"text/blocks/{ours}/scale"
        table.append(Name(path, f"llm/layers/{bv}/scale", _same, f"{_HF_LAYER}{hf}.weight", _same))
    embedding, norm = _HF_TEXT + "embed_tokens.weight", _HF_TEXT + "norm.weight"
    table.append(Name("text/embedding", "llm/embedder/input_embedding", _same, embedding, _same))
    table.append(Name("text/final_norm/scale", "llm/final_norm/scale", _same, norm, _same))
    return table


TABLE: tuple[Name, ...] = (
    *_vision(),
    *_text(),
    *_linear("projector", "img/head", "multi_modal_projector.linear"),
)
