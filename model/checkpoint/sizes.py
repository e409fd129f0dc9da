"""Inference of a model's configuration from the shapes of its arrays."""

import math
from collections.abc import Mapping

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
    for key, axes in ((_ATTN, 4), (_Q, 4), (_KV, 5)):
        if len(shapes[key]) != axes:
            raise ValueError(f"{key} must have {axes} axes (layers first), got {shapes[key]}.")
    _, num_heads, _, head_dim = shapes[_Q]
    return CheckpointFacts(
        vision={"num_heads": shapes[_ATTN][2]},
        text={"num_heads": num_heads, "num_kv_heads": shapes[_KV][2], "head_dim": head_dim},
    )


def model_config(shapes: Mapping[str, Shape], facts: CheckpointFacts) -> ModelConfig:
    """Returns the vanilla model whose parameters have these shapes.

    Args:
      shapes: our path -> shape, as `translate.our_shapes` gives them.
      facts: facts that the shapes do not show.

    Raises:
      ValueError: if an array that gives sizes is missing, or the image's grid is not square.
    """
    # Axes of each of these arrays, in the 3B model at 224 px:
    #
    #     vision/patches/kernel         (14, 14, 3, 1152)   patch, patch, RGB, width
    #     vision/positions              (256, 1152)         patches of a 16 x 16 grid
    #     vision/blocks/mlp/up/kernel   (27, 1152, 4304)    depth, width, hidden
    #     text/embedding                (257152, 2304)      vocabulary, width
    #     text/blocks/gate              (26, 2304, 9216)    depth, width, hidden
    try:
        patch_px, _, _, width = shapes["vision/patches/kernel"]
        positions = shapes["vision/positions"][0]
        depth, _, mlp_dim = shapes["vision/blocks/mlp/up/kernel"]
        vocab_size, text_width = shapes["text/embedding"]
        text_depth, _, text_mlp_dim = shapes["text/blocks/gate"]
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"sizes cannot be read off this checkpoint: {error} has another number of axes."
        ) from None
    # A class token has a position, too, which is not one of the grid.
    class_token = "vision/class_token" in shapes
    grid = math.isqrt(positions)
    if grid * grid + class_token != positions:
        raise ValueError(f"position embeddings must cover a square, got {positions} of them.")
    scaling = facts.text.get("rope_scaling")
    # The embedding may have rows beyond the vocabulary, which other codebases add as padding.
    return ModelConfig(
        vision=VisionConfig(
            image_px=grid * patch_px,
            patch_px=patch_px,
            width=width,
            depth=depth,
            mlp_dim=mlp_dim,
            **facts.vision,
        ),
        text=TextConfig(
            vocab_size=min(vocab_size, facts.vocab_size),
            width=text_width,
            depth=text_depth,
            mlp_dim=text_mlp_dim,
            **{**facts.text, "rope_scaling": RopeScaling(**scaling) if scaling else None},
        ),
        attn_softcap=facts.attn_softcap,
        final_softcap=facts.final_softcap,
        projector=facts.projector,
    )
