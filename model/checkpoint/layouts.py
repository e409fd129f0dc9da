"""Conversions between our layout of an array and other codebases' layouts."""

import typing
from collections.abc import Callable

import numpy as np

from model.config import ModelConfig

Heads = Callable[[ModelConfig], int]


class Layout(typing.NamedTuple):
    """Two functions that convert an array's layout; they move, merge and split axes only.

    Attributes:
      read: function from their array to ours.
      write: function from our array to theirs; the configuration says how merged axes are split.
    """

    read: Callable[[np.ndarray], np.ndarray]
    write: Callable[[np.ndarray, ModelConfig], np.ndarray]


SAME = Layout(lambda x: x, lambda x, cfg: x)
TRANSPOSED = Layout(lambda x: x.T, lambda x, cfg: x.T)
ROWS = Layout(lambda x: x[0], lambda x, cfg: x[None])
"""Theirs is (1, rows, width), ours (rows, width)."""
OIHW = Layout(lambda x: x.transpose(2, 3, 1, 0), lambda x, cfg: x.transpose(3, 2, 0, 1))
"""Theirs is PyTorch's kernel (out, in, height, width), ours is (height, width, in, out)."""


def vision_heads(cfg: ModelConfig) -> int:
    """Returns the number of heads in the image tower."""
    return cfg.vision.num_heads


def query_heads(cfg: ModelConfig) -> int:
    """Returns the number of query heads in the decoder."""
    return cfg.text.num_heads


def key_heads(cfg: ModelConfig) -> int:
    """Returns the number of key and value heads in the decoder."""
    return cfg.text.num_kv_heads


def merged_heads(axis: int, heads: Heads) -> Layout:
    """Returns the layout with heads and channels on axes `axis` and `axis + 1`, merged in ours."""
    # merged_heads(1, vision_heads), an output kernel: theirs (27, 16, 72, 1152), ours
    # (27, 1152, 1152).
    # Only the direction to theirs needs the model: 1152 alone does not say 16 heads of 72.
    return Layout(
        lambda x: x.reshape(
            *x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :]
        ),
        lambda x, cfg: x.reshape(
            *x.shape[:axis], heads(cfg), x.shape[axis] // heads(cfg), *x.shape[axis + 1 :]
        ),
    )


def heads_first(heads: Heads) -> Layout:
    """Returns the layout with separate heads.

    Theirs is (layers, heads, width, channels), ours (layers, width, heads * channels).
    """
    # The decoder's query: theirs (26, 8, 2304, 256), ours (26, 2304, 2048).
    last = merged_heads(2, heads)
    return Layout(
        lambda x: last.read(x.transpose(0, 2, 1, 3)),
        lambda x, cfg: last.write(x, cfg).transpose(0, 2, 1, 3),
    )
