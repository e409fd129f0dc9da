"""Small random models of uncommon sizes, as files of other codebases."""

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors.numpy

from model import vlm
from model.checkpoint import translate
from model.checkpoint.digest import flatten_params, unflatten_params
from model.checkpoint.folder import save_checkpoint
from model.checkpoint.hugging_face_config import write_config
from model.checkpoint.importer import import_checkpoint, open_source
from model.config import ModelConfig
from model.text.config import TextConfig
from model.vision.config import VisionConfig

ODD = ModelConfig(
    vision=VisionConfig(image_px=15, patch_px=5, width=12, depth=3, mlp_dim=7, num_heads=3),
    text=TextConfig(
        vocab_size=41, width=10, depth=2, mlp_dim=11, head_dim=6, num_heads=4, num_kv_heads=2
    ),
)
"""3 x 3 patches, widths that differ, 4 heads of 6 on a width of 10."""


def random_params(cfg: ModelConfig, seed: int = 0, dtype: type = np.float32) -> vlm.Params:
    """Returns float32 parameters, exact in `dtype`."""
    rng = np.random.default_rng(seed)
    shapes = flatten_params(vlm.abstract_params(cfg))
    return unflatten_params(
        {
            path: rng.normal(0, 0.3, leaf.shape).astype(dtype).astype(np.float32)
            for path, leaf in shapes
        }
    )


def ours(folder: Path, cfg: ModelConfig = ODD, dtype: type = np.float32) -> Path:
    """Writes a checkpoint of ours, without a tokenizer."""
    folder.mkdir()
    params = random_params(cfg, dtype=dtype)
    save_checkpoint(folder, model=cfg, params=params, tokenizer=None, mask_codec=None)
    return folder


def big_vision(cfg: ModelConfig = ODD, dtype: type = np.float32) -> dict[str, np.ndarray]:
    """Returns arrays as an `.npz` of big_vision has them, layouts written out here anew."""
    p = dict(flatten_params(random_params(cfg, dtype=dtype)))
    v, t = cfg.vision, cfg.text
    n, c, h, d = v.depth, v.width, v.num_heads, v.width // v.num_heads
    block = "params/img/Transformer/encoderblock/"
    attn = block + "MultiHeadDotProductAttention_0/"
    arrays = {
        "params/img/embedding/kernel": p["vision/patches/kernel"],
        "params/img/embedding/bias": p["vision/patches/bias"],
        "params/img/pos_embedding": p["vision/positions"][None],
        "params/img/Transformer/encoder_norm/scale": p["vision/norm/scale"],
        "params/img/Transformer/encoder_norm/bias": p["vision/norm/bias"],
        "params/img/head/kernel": p["projector/kernel"],
        "params/img/head/bias": p["projector/bias"],
        attn + "out/kernel": p["vision/blocks/attn/out/kernel"].reshape(n, h, d, c),
        attn + "out/bias": p["vision/blocks/attn/out/bias"],
    }
    for part in ("query", "key", "value"):
        arrays[f"{attn}{part}/kernel"] = p[f"vision/blocks/attn/{part}/kernel"].reshape(n, c, h, d)
        arrays[f"{attn}{part}/bias"] = p[f"vision/blocks/attn/{part}/bias"].reshape(n, h, d)
    for i, norm in enumerate(("attn_norm", "mlp_norm")):
        for part in ("scale", "bias"):
            arrays[f"{block}LayerNorm_{i}/{part}"] = p[f"vision/blocks/{norm}/{part}"]
    for i, layer in enumerate(("up", "down")):
        for part in ("kernel", "bias"):
            key = f"{block}MlpBlock_0/Dense_{i}/{part}"
            arrays[key] = p[f"vision/blocks/mlp/{layer}/{part}"]

    def heads(name: str, count: int) -> np.ndarray:
        x = p[f"text/blocks/{name}"].reshape(t.depth, t.width, count, t.head_dim)
        return np.moveaxis(x, 2, 1)

    layers, b = "params/llm/layers/", "text/blocks/"
    keys, values = heads("key", t.num_kv_heads), heads("value", t.num_kv_heads)
    out = p[b + "out"].reshape(t.depth, t.num_heads, t.head_dim, t.width)
    arrays |= {
        "params/llm/embedder/input_embedding": p["text/embedding"],
        "params/llm/final_norm/scale": p["text/final_norm/scale"],
        layers + "attn/q_einsum/w": heads("query", t.num_heads),
        layers + "attn/kv_einsum/w": np.stack([keys, values], axis=1),
        layers + "attn/attn_vec_einsum/w": out,
        layers + "mlp/gating_einsum": np.stack([p[b + "gate"], p[b + "up"]], axis=1),
        layers + "mlp/linear": p[b + "down"],
    }
    for mine, theirs in (("attn", "attention"), ("mlp", "ffw")):
        for when in ("pre", "post"):
            key = f"{layers}{when}_{theirs}_norm/scale"
            arrays[key] = p[f"{b}{when}_{mine}_norm/scale"]
    return arrays


def as_void(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns arrays as numpy stores bfloat16: two bytes of no type."""
    return {key: x.astype(ml_dtypes.bfloat16).view("V2") for key, x in arrays.items()}


def hugging_face(cfg: ModelConfig = ODD) -> dict[str, np.ndarray]:
    """Returns tensors under the names of the hub."""
    params = dict(flatten_params(random_params(cfg)))
    return {key: np.ascontiguousarray(x) for key, x in translate.to_hugging_face(params, cfg)}


def config_of(cfg: ModelConfig = ODD, rows: int = 0) -> str:
    """Returns a `config.json`."""
    return json.dumps(write_config(cfg, rows or cfg.text.vocab_size, np.dtype(np.float32)))


def later_names(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns tensors as later releases of transformers name them."""
    renamed = {}
    for key, x in tensors.items():
        name = key.replace("language_model.model.", "language_model.")
        renamed["model." + name.replace("vision_model.", "")] = x
    return renamed


def write_hugging_face(folder: Path, tensors: dict[str, np.ndarray], config: str) -> Path:
    """Writes a folder of Hugging Face's, and returns it."""
    folder.mkdir()
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(config)
    return folder


def imported(path: Path, tmp_path: Path) -> Path:
    """Converts a checkpoint and returns the folder of ours, made anew."""
    folder = tmp_path / "imported"
    shutil.rmtree(folder, ignore_errors=True)
    import_checkpoint(open_source(path), folder, None)
    return folder
