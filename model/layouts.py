"""Names of a parameter in other codebases, and conversions between their layouts and ours."""

import typing
from collections.abc import Callable

import numpy as np


class _Tower(typing.Protocol):
    @property
    def num_heads(self) -> int: ...


class _Decoder(_Tower, typing.Protocol):
    @property
    def num_kv_heads(self) -> int: ...


class HeadCounts(typing.Protocol):
    """The fields of a model that say how merged axes are split; `ModelConfig` has them."""

    @property
    def vision(self) -> _Tower: ...
    @property
    def text(self) -> _Decoder: ...


Heads = Callable[[HeadCounts], int]


class Layout(typing.NamedTuple):
    """Two functions that convert an array's layout; they move, merge and split axes only.

    Attributes:
      read: function from their array to ours.
      write: function from our array to theirs; the configuration says how merged axes are split.
    """

    read: Callable[[np.ndarray], np.ndarray]
    write: Callable[[np.ndarray, HeadCounts], np.ndarray]


SAME = Layout(lambda x: x, lambda x, cfg: x)
TRANSPOSED = Layout(lambda x: x.T, lambda x, cfg: x.T)
ROWS = Layout(lambda x: x[0], lambda x, cfg: x[None])
"""Theirs is (1, rows, width), ours (rows, width)."""
OIHW = Layout(lambda x: x.transpose(2, 3, 1, 0), lambda x, cfg: x.transpose(3, 2, 0, 1))
"""Theirs is PyTorch's kernel (out, in, height, width), ours is (height, width, in, out)."""


def vision_heads(cfg: HeadCounts) -> int:
    """Returns the number of heads in the image tower."""
    return cfg.vision.num_heads


def query_heads(cfg: HeadCounts) -> int:
    """Returns the number of query heads in the decoder."""
    return cfg.text.num_heads


def key_heads(cfg: HeadCounts) -> int:
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


HF_TOWER, HF_DECODER = "vision_tower.vision_model.", "language_model.model."
"""Prefixes of Hugging Face's names in a model of both, as files on the hub had them in 2024."""


class ParameterName(typing.NamedTuple):
    """Names and layouts of one parameter.

    Attributes:
      ours: path in our nested dict, joined by "/".
      hugging_face: key in safetensors, with `{i}` for the layer if every layer has one.
      hugging_face_layout: layout of the array in Hugging Face, of one layer.
      big_vision: key in an `.npz`, without a leading `params/`; "" for what big_vision lacks.
      big_vision_layout: layout of the array in big_vision, or of our part of it.
      part: index on axis 1 of a big_vision array that holds several of our parameters; None if it
        holds only this one.
    """

    ours: str
    hugging_face: str
    hugging_face_layout: Layout = SAME
    big_vision: str = ""
    big_vision_layout: Layout = SAME
    part: int | None = None


Names = tuple[ParameterName, ...]


def linear_names(
    ours: str,
    hugging_face: str,
    big_vision: str = "",
    kernel: Layout = SAME,
    bias: Layout = SAME,
) -> list[ParameterName]:
    """Returns the names of a linear layer's kernel and bias; layouts are big_vision's."""
    ours_and_theirs = (
        ("kernel", "weight", TRANSPOSED, kernel),
        ("bias", "bias", SAME, bias),
    )
    return [
        ParameterName(
            f"{ours}/{part}",
            f"{hugging_face}.{hf_part}",
            layout,
            big_vision and f"{big_vision}/{part}",
            bv_layout,
        )
        for part, hf_part, layout, bv_layout in ours_and_theirs
    ]


def without_big_vision(names: Names, prefix: str) -> Names:
    """Returns the names of parameters below a path, for a family that big_vision lacks."""
    return tuple(
        ParameterName(name.ours, name.hugging_face, name.hugging_face_layout)
        for name in names
        if name.ours.startswith(prefix)
    )
