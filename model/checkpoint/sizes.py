"""Inference of a model's configuration from the shapes of its arrays."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from model.checkpoint.hugging_face_config import CheckpointFacts
from model.config import ModelConfig
from model.text.config import RopeScaling, TextConfig
from model.vision.config import VisionConfig

Shape = tuple[int, ...]

_ATTN = "img/Transformer/encoderblock/MultiHeadDotProductAttention_0/query/kernel"
_Q, _KV = "llm/layers/attn/q_einsum/w", "llm/layers/attn/kv_einsum/w"


def big_vision_facts(shapes: Mapping[str, Shape]) -> CheckpointFacts:
    """Returns the facts in big_vision's attention kernels, where heads are a separate axis.

    Args:
      shapes: shape of every array, by its key without `params/`.

    Raises:
      ValueError: if a kernel has too few axes.
    """
    return CheckpointFacts(vision=big_vision_tower(shapes), text=big_vision_decoder(shapes))


def big_vision_tower(shapes: Mapping[str, Shape]) -> dict[str, Any]:
    """Returns the fields of `VisionConfig` among `big_vision_facts`."""
    _check_axes(shapes, _ATTN, 4)
    return {"num_heads": shapes[_ATTN][2]}


def big_vision_decoder(shapes: Mapping[str, Shape]) -> dict[str, Any]:
    """Returns the fields of `TextConfig` among `big_vision_facts`."""
    _check_axes(shapes, _Q, 4)
    _check_axes(shapes, _KV, 5)
    _, num_heads, _, head_dim = shapes[_Q]
    return {"num_heads": num_heads, "num_kv_heads": shapes[_KV][2], "head_dim": head_dim}


def _check_axes(shapes: Mapping[str, Shape], key: str, axes: int) -> None:
    if len(shapes[key]) != axes:
        raise ValueError(f"{key} must have {axes} axes (layers first), got {shapes[key]}.")


def model_config(shapes: Mapping[str, Shape], facts: CheckpointFacts) -> ModelConfig:
    """Returns the vanilla model whose parameters have these shapes.

    Args:
      shapes: our path -> shape, as `translate.our_shapes` gives them.
      facts: facts that the shapes do not show.

    Raises:
      ValueError: if an array that gives sizes is missing, or the image's grid is not square.
    """
    # The embedding may have rows beyond the vocabulary, which other codebases add as padding.
    text = decoder_config(shapes, facts.text)
    vocab_size = min(text.vocab_size, facts.vocab_size)
    return ModelConfig(
        vision=tower_config(shapes, facts.vision),
        text=dataclasses.replace(text, vocab_size=vocab_size),
        attn_softcap=facts.attn_softcap,
        final_softcap=facts.final_softcap,
        projector=facts.projector,
        prompt=facts.prompt,
    )


def tower_config(shapes: Mapping[str, Shape], fields: Mapping[str, Any]) -> VisionConfig:
    """Returns the tower of these shapes and further fields; see `model_config`."""
    # Axes of each of these arrays, in the 3B model at 224 px:
    #
    #     vision/patches/kernel         (14, 14, 3, 1152)   patch, patch, RGB, width
    #     vision/positions              (256, 1152)         patches of a 16 x 16 grid
    #     vision/blocks/mlp/up/kernel   (27, 1152, 4304)    depth, width, hidden
    with _explain_axis_errors():
        patch_px, _, _, width = shapes["vision/patches/kernel"]
        positions = shapes["vision/positions"][0]
        depth, _, mlp_dim = shapes["vision/blocks/mlp/up/kernel"]
    # A class token has a position, too, which is not one of the grid.
    class_token = "vision/class_token" in shapes
    grid = math.isqrt(positions)
    if grid * grid + class_token != positions:
        raise ValueError(f"position embeddings must cover a square, got {positions} of them.")
    return VisionConfig(
        image_px=grid * patch_px,
        patch_px=patch_px,
        width=width,
        depth=depth,
        mlp_dim=mlp_dim,
        **fields,
    )


def decoder_config(shapes: Mapping[str, Shape], fields: Mapping[str, Any]) -> TextConfig:
    """Returns the decoder of these shapes and further fields; its vocabulary is all rows."""
    #     text/embedding                (257152, 2304)      vocabulary, width
    #     text/blocks/gate              (26, 2304, 9216)    depth, width, hidden
    with _explain_axis_errors():
        vocab_size, width = shapes["text/embedding"]
        depth, _, mlp_dim = shapes["text/blocks/gate"]
    scaling = fields.get("rope_scaling")
    return TextConfig(
        vocab_size=vocab_size,
        width=width,
        depth=depth,
        mlp_dim=mlp_dim,
        **{**fields, "rope_scaling": RopeScaling(**scaling) if scaling else None},
    )


@contextlib.contextmanager
def _explain_axis_errors() -> Iterator[None]:
    try:
        yield
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"sizes cannot be read off this checkpoint: {error} has another number of axes."
        ) from None
