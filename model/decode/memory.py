"""A formula for the memory of decoding, which says how many rows a device takes at a time."""

from typing import Any

import jax.numpy as jnp

from model.attention import MAX_BLOCK
from model.config import ModelConfig

_FLOAT32 = 4
SHARE = 0.9
"""Share of the free memory that is planned for: a compiler's other temporaries need some."""


def row_bytes(
    model: ModelConfig, tokens: int, *, num_images: int, text_len: int, new_tokens: int, beams: int
) -> float:
    """Returns the memory that one row of a batch needs while it is answered [bytes].

    Counted are the images' features, the cache, the scores of the vocabulary, and the larger of
    what one block of the tower and one of the decoder hold at a time.

    Args:
      model: config of the model.
      tokens: slots for soft tokens, per image.
      num_images: images of the row.
      text_len: length of the prompt.
      new_tokens: longest answer.
      beams: live hypotheses; 1 for no beam search.
    """
    vision, text = model.vision, model.text
    scalar, tower_tokens = jnp.dtype(model.dtype).itemsize, vision.num_tokens
    length = num_images * tokens + text_len
    # A beam's cache is reordered at each token, which takes a second copy of it.
    copies = 1 if beams == 1 else 2 * beams
    token = 2 * scalar * text.depth * text.num_kv_heads * text.head_dim  # Its keys and values.
    cache = token * (length + copies * new_tokens)
    features = scalar * num_images * vision.num_patches * vision.width
    scores = 3 * _FLOAT32 * beams * text.vocab_size
    # Logits of a block of queries, and their weights.
    tower = num_images * (
        2 * _FLOAT32 * vision.num_heads * min(tower_tokens, MAX_BLOCK) * tower_tokens
        + scalar * tower_tokens * (8 * vision.width + vision.mlp_dim)
    )
    block = 2 * _FLOAT32 * text.num_heads * min(length, MAX_BLOCK) * length
    block += scalar * length * (8 * text.width + 3 * text.mlp_dim)
    return float(features + cache + scores + max(tower, block))


def rows_that_fit(batch_size: int, bytes_per_row: float, free_bytes: float | None) -> int:
    """Returns the most rows that fit, of those that divide a batch into equal parts; at least 1.

    Args:
      batch_size: rows of the batch.
      bytes_per_row: memory of one, see `row_bytes`.
      free_bytes: memory that is free; None if it is not known, and then all rows are taken.
    """
    # A batch of 32 is decoded as 32 rows, or as twice 16, four times 8, …
    sizes = [rows for rows in range(batch_size, 0, -1) if batch_size % rows == 0]
    if free_bytes is None:
        return batch_size
    return next((rows for rows in sizes if rows * bytes_per_row <= free_bytes), 1)


def free_bytes(device: Any) -> float | None:
    """Returns the memory of a device that decoding may take; None if the device does not tell."""
    stats = device.memory_stats() or {}
    if "bytes_limit" not in stats:
        return None
    return SHARE * (stats["bytes_limit"] - stats.get("bytes_in_use", 0))
