"""The reference models kept outside the project, as our parameters and configurations."""

import dataclasses
import json
import pathlib
import typing

import numpy as np
import pytest

from model import vlm
from model.checkpoint import translate
from model.config import ModelConfig
from model.text.config import TextConfig
from model.vision.config import VisionConfig

FOLDER = pathlib.Path(__file__).parents[2].parent / "shared" / "parity"


@dataclasses.dataclass(frozen=True)
class Reference:
    """One reference model with what it was given and what it gave."""

    cfg: ModelConfig
    params: vlm.Params
    expected: dict[str, np.ndarray]


def hugging_face() -> Reference:
    """Returns the model made with transformers."""
    folder = _folder("hf_paligemma2_tiny")
    config = json.loads((folder / "config.json").read_text())
    text, vision = config["text_config"], config["vision_config"]
    params = translate.from_hugging_face(_safetensors(folder / "model.safetensors"))
    heads = text["num_attention_heads"], text["num_key_value_heads"]
    cfg = _config(params, vision["num_attention_heads"], heads, text["head_dim"], vision)
    caps = text["attn_logit_softcapping"], text["final_logit_softcapping"]
    window = dataclasses.replace(cfg.text, sliding_window=text["sliding_window"])
    cfg = dataclasses.replace(cfg, text=window, attn_softcap=caps[0], final_softcap=caps[1])
    return Reference(cfg, params, dict(np.load(folder / "expected.npz")))


def big_vision() -> Reference:
    """Returns the model made with big_vision; its logits have no final soft-cap."""
    folder = _folder("bv_paligemma2_tiny")
    arrays = dict(np.load(folder / "checkpoint.npz"))
    expected = dict(np.load(folder / "expected.npz"))
    q = arrays["params/llm/layers/attn/q_einsum/w"].shape
    kv = arrays["params/llm/layers/attn/kv_einsum/w"].shape
    vision = arrays[
        "params/img/Transformer/encoderblock/MultiHeadDotProductAttention_0/query/kernel"
    ].shape
    size = {"image_size": expected["image_nhwc"].shape[1], "patch_size": 14}
    params = translate.from_big_vision(arrays)
    cfg = _config(params, vision[2], (q[1], kv[2]), q[3], size)
    return Reference(dataclasses.replace(cfg, final_softcap=0.0), params, expected)


def _folder(name: str) -> pathlib.Path:
    if not (FOLDER / name).is_dir():
        pytest.skip(f"needs the reference model {name} in ../shared/parity")
    return FOLDER / name


def _config(
    params: vlm.Params,
    vision_heads: int,
    heads: tuple[int, int],
    head_dim: int,
    size: dict[str, typing.Any],
) -> ModelConfig:
    up = params["vision"]["blocks"]["mlp"]["up"]["kernel"]
    gate = params["text"]["blocks"]["gate"]
    return ModelConfig(
        vision=VisionConfig(
            image_px=size["image_size"],
            patch_px=size["patch_size"],
            depth=up.shape[0],
            width=up.shape[1],
            mlp_dim=up.shape[2],
            num_heads=vision_heads,
        ),
        text=TextConfig(
            vocab_size=params["text"]["embedding"].shape[0],
            depth=gate.shape[0],
            width=gate.shape[1],
            mlp_dim=gate.shape[2],
            num_heads=heads[0],
            num_kv_heads=heads[1],
            head_dim=head_dim,
        ),
    )


def _safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads float32 tensors: a length, a JSON header, then the bytes."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    arrays = {}
    for name, entry in json.loads(raw[8:start]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            flat = np.frombuffer(raw[start + first : start + last], "<f4")
            arrays[name] = flat.reshape(entry["shape"])
    return arrays
