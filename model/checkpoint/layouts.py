"""How other codebases lay an array out: what makes it ours, and what makes it theirs again."""

import typing
from collections.abc import Callable

import numpy as np

from model.config import ModelConfig

Heads = Callable[[ModelConfig], int]


class Layout(typing.NamedTuple):
    """Both directions only move axes: values pass through untouched.

    Attributes:
      read: gives our array from theirs.
      write: gives theirs from ours; what ours merged is split by the configuration.
    """

    read: Callable[[np.ndarray], np.ndarray]
    write: Callable[[np.ndarray, ModelConfig], np.ndarray]


SAME = Layout(lambda x: x, lambda x, cfg: x)
TRANSPOSED = Layout(lambda x: x.T, lambda x, cfg: x.T)
ROWS = Layout(lambda x: x[0], lambda x, cfg: x[None])
"""(1, rows, width) there, (rows, width) here."""
OIHW = Layout(lambda x: x.transpose(2, 3, 1, 0), lambda x, cfg: x.transpose(3, 2, 0, 1))
"""A convolution's kernel as PyTorch keeps it; ours is (height, width, in, out)."""


def vision_heads(cfg: ModelConfig) -> int:
    """Returns the heads of the image tower."""
    return cfg.vision.num_heads


def query_heads(cfg: ModelConfig) -> int:
    """Returns the query heads of the decoder."""
    return cfg.text.num_heads


def key_heads(cfg: ModelConfig) -> int:
    """Returns the key and value heads of the decoder."""
    return cfg.text.num_kv_heads


def merged(axis: int, heads: Heads) -> Layout:
    """Heads and their channels: axes `axis` and `axis + 1` there, one axis here."""
    return Layout(
        lambda x: x.reshape(
            *x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :]
        ),
        lambda x, cfg: x.reshape(
            *x.shape[:axis], heads(cfg), x.shape[axis] // heads(cfg), *x.shape[axis + 1 :]
        ),
    )


def heads_first(heads: Heads) -> Layout:
    """(layers, heads, width, channels) there, (layers, width, heads * channels) here."""
    last = merged(2, heads)
    return Layout(
        lambda x: last.read(x.transpose(0, 2, 1, 3)),
        lambda x, cfg: last.write(x, cfg).transpose(0, 2, 1, 3),
    )
