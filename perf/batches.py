"""Random inputs of the right shapes."""

import numpy as np

from model import vlm
from model.config import ModelConfig
from model.data.loader import Batch


def train_batch(
    cfg: ModelConfig, size: int, text_len: int, num_images: int = 1, *, seed: int = 0
) -> Batch:
    """Returns examples whose last third of the text is the suffix."""
    rng = np.random.default_rng(seed)
    px, length = cfg.vision.image_px, text_len + 1
    suffix = np.broadcast_to(np.arange(length) >= 2 * length // 3, (size, length))
    return {
        "image": rng.integers(0, 256, (size, num_images, px, px, 3), dtype=np.uint8),
        "text": rng.integers(3, cfg.text.vocab_size, (size, length), dtype=np.int32),
        "mask_ar": suffix.astype(np.int32),
        "mask_loss": suffix.astype(np.int32),
    }


def prompts(cfg: ModelConfig, size: int, text_len: int, num_images: int = 1) -> vlm.Prompt:
    """Returns full-length prompts."""
    batch = train_batch(cfg, size, text_len, num_images)
    text = batch["text"][:, :text_len]
    return vlm.Prompt(batch["image"], text, np.ones_like(text), np.zeros_like(text))
