"""Tiny random models of every family: their configs as transformers writes them, and weights.

Weights are drawn by a parameter's name, so that transformers and our model have the same without a
file. `python -m tests.model.families.make_references` makes `references.npz`, what transformers
computes with them.
"""

import math
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_name("references.npz")
NUM_NEW = 10
"""Number of greedy tokens."""
NUM_BEFORE = 5
"""Number of tokens before the image, where there is text before it."""
NUM_PREFIX = 6
"""Number of tokens after the image that are of its prefix, where there is one."""
_PREFIXES = re.compile(r"^(?:(?:model|language_model|vision_tower|vision_model)\.)*")

_TOWER_A = {
    "image_size": 16,
    "patch_size": 4,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "intermediate_size": 20,
    "num_attention_heads": 3,
}
_TOWER_B = {
    "image_size": 30,
    "patch_size": 6,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "intermediate_size": 28,
    "num_attention_heads": 2,
}
_NAFLEX = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads")
_TEXT_A = {
    "vocab_size": 41,
    "hidden_size": 20,
    "num_hidden_layers": 3,
    "intermediate_size": 28,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
}
_TEXT_B = {
    "vocab_size": 53,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "intermediate_size": 36,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 10,
}


def _naflex(tower: dict[str, int]) -> dict[str, Any]:
    grid = tower["image_size"] // tower["patch_size"]
    sizes = {name: tower[name] for name in _NAFLEX}
    return {**sizes, "patch_size": tower["patch_size"], "num_patches": grid**2}


TOWERS: dict[str, dict[str, Any]] = {
    "siglip_a": {"model_type": "siglip_vision_model", "hidden_act": "gelu_pytorch_tanh"} | _TOWER_A,
    "siglip_b": {"model_type": "siglip_vision_model", "hidden_act": "gelu_pytorch_tanh"} | _TOWER_B,
    "siglip2_a": {"model_type": "siglip2_vision_model"} | _naflex(_TOWER_A),
    "siglip2_b": {"model_type": "siglip2_vision_model"} | _naflex(_TOWER_B),
    "clip_a": {"model_type": "clip_vision_model"} | _TOWER_A,
    "clip_b": {"model_type": "clip_vision_model"} | _TOWER_B,
}
DECODERS: dict[str, dict[str, Any]] = {
    "gemma2_a": {
        "model_type": "gemma2",
        "sliding_window": 4,
        "query_pre_attn_scalar": 6,
        **_TEXT_A,
    },
    # Of the 27B size, queries are divided by the root of another number than `head_dim`.
    "gemma2_b": {
        "model_type": "gemma2",
        "sliding_window": 5,
        "query_pre_attn_scalar": 14,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        **_TEXT_B,
    },
    # Of more than six layers, so that one sees everything.
    "gemma3_a": {
        "model_type": "gemma3_text",
        "sliding_window": 4,
        "query_pre_attn_scalar": 6,
        **_TEXT_A,
        "num_hidden_layers": 7,
    },
    "gemma3_b": {
        "model_type": "gemma3_text",
        "sliding_window": 5,
        "query_pre_attn_scalar": 14,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
        **_TEXT_B,
        "num_hidden_layers": 8,
    },
    "llama_a": {
        "model_type": "llama",
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        **_TEXT_A,
    },
    "llama_b": {
        "model_type": "llama",
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 3.0,
            "original_max_position_embeddings": 24,
        },
        **_TEXT_B,
    },
}
WHOLE = {"paligemma_a": ("siglip_a", "gemma2_a"), "paligemma_b": ("siglip_b", "gemma2_b")}
WHOLE |= {"llava_a": ("clip_a", "llama_a"), "llava_b": ("clip_b", "llama_b")}
"""Models of transformers with a tower and a decoder."""


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the weight of a parameter of transformers; a name's prefixes do not count."""
    name = _PREFIXES.sub("", name)
    draw = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    if "norm" in name and name.endswith("weight"):
        return (0.4 + 0.2 * draw).astype(np.float32)
    if len(shape) == 1:
        return (0.2 * draw).astype(np.float32)
    fan_in = 1 if "embed" in name and "patch" not in name else math.prod(shape[1:])
    return (1.5 * draw / fan_in**0.5).astype(np.float32)


def side(tower: str) -> int:
    """Returns the side of a tower's images [pixels]."""
    return (_TOWER_A if tower.endswith("_a") else _TOWER_B)["image_size"]


def images(tower: str) -> np.ndarray:
    """Returns two images in [-1, 1], (2, H, W, 3)."""
    shape = (2, side(tower), side(tower), 3)
    return np.random.default_rng(3).uniform(-1, 1, shape).astype(np.float32)


def tokens(decoder: str) -> np.ndarray:
    """Returns two texts, longer than any window."""
    last = DECODERS[decoder]["vocab_size"] - 1  # The last row is the image's placeholder.
    return np.random.default_rng(4).integers(3, last, (2, 14)).astype(np.int32)
