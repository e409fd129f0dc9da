"""Facts and published sizes of SigLIP 2. Source: arXiv:2502.14786."""

import dataclasses

from model.vision.siglip.family import FAMILY as SIGLIP

FAMILY = dataclasses.replace(
    SIGLIP,
    sizes={
        "siglip2-so400m": {},
        "siglip2-base": {
            "width": 768,
            "depth": 12,
            "mlp_dim": 3072,
            "num_heads": 12,
            "patch_px": 16,
        },
        "siglip2-large": {
            "width": 1024,
            "depth": 24,
            "mlp_dim": 4096,
            "num_heads": 16,
            "patch_px": 16,
            "image_px": 256,
        },
        "siglip2-giant": {
            "width": 1536,
            "depth": 40,
            "mlp_dim": 6144,
            "num_heads": 16,
            "patch_px": 16,
            "image_px": 256,
        },
    },
)
