"""The two towers' blocks as formulas in float64 NumPy, without a line of the model's code.

Source: "Attention Is All You Need" with pre-norm (SigLIP); Gemma 2, arXiv:2408.00118, section 2.
"""

import math
import typing

import numpy as np

Tree = dict[str, typing.Any]


def siglip_block(p: Tree, x: np.ndarray, num_heads: int) -> np.ndarray:
    """Returns the features (B, P, C) after one block with parameters `p`."""
    y = _layer_norm(p["attn_norm"], x)
    query, key, value = (
        _heads(_linear(p["attn"][name], y), num_heads) for name in ("query", "key", "value")
    )
    everything = np.ones((x.shape[0], x.shape[1], x.shape[1]), bool)
    x = x + _linear(p["attn"]["out"], _attend(query, key, value, everything, 0.0))
    hidden = _gelu(_linear(p["mlp"]["up"], _layer_norm(p["mlp_norm"], x)))
    return x + _linear(p["mlp"]["down"], hidden)


def gemma_block(
    p: Tree, x: np.ndarray, positions: np.ndarray, mask: np.ndarray, *, head_dim: int, cap: float
) -> np.ndarray:
    """Returns the stream (B, L, D) after one block; `mask` (B, L, L) says which row sees which."""
    y = rms_norm(p["pre_attn_norm"]["scale"], x)
    query, key, value = (
        _heads(y @ p[name], p[name].shape[1] // head_dim) for name in ("query", "key", "value")
    )
    group = query.shape[2] // key.shape[2]
    key, value = np.repeat(_turn(key, positions), group, 2), np.repeat(value, group, 2)
    read = _attend(_turn(query, positions), key, value, mask, cap) @ p["out"]
    x = x + rms_norm(p["post_attn_norm"]["scale"], read)
    y = rms_norm(p["pre_mlp_norm"]["scale"], x)
    down = (_gelu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]
    return x + rms_norm(p["post_mlp_norm"]["scale"], down)


def rms_norm(scale: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Returns `x` with unit mean square, times 1 + scale."""
    return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6) * (1 + scale)


def _layer_norm(p: Tree, x: np.ndarray) -> np.ndarray:
    spread = np.sqrt(np.var(x, -1, keepdims=True) + 1e-6)
    return (x - np.mean(x, -1, keepdims=True)) / spread * p["scale"] + p["bias"]


def _linear(p: Tree, x: np.ndarray) -> np.ndarray:
    return x @ p["kernel"] + p["bias"]


def _heads(x: np.ndarray, count: int) -> np.ndarray:
    return x.reshape(*x.shape[:2], count, -1)


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _turn(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    angle = positions[:, :, None, None] * 10_000.0 ** (-np.arange(half) / half)
    pairs = x[..., :half] + 1j * x[..., half:]
    turned = pairs * np.exp(1j * angle)
    return np.concatenate([turned.real, turned.imag], -1)


def _attend(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray, cap: float
) -> np.ndarray:
    logits = np.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(query.shape[-1])
    logits = cap * np.tanh(logits / cap) if cap else logits
    weights = np.where(mask[:, None], np.exp(logits - logits.max(-1, keepdims=True)), 0.0)
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", weights, value).reshape(*query.shape[:2], -1)
