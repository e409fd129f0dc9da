"""Facts and published sizes of CLIP. Source: transformers 5.24 `models/clip`.

Features are those before the last block, without the class token and the last norm. Source: LLaVA,
`llava/model/multimodal_encoder/clip_encoder.py`.
"""

from model.vision.family import TowerFamily

FAMILY = TowerFamily(
    activation="quick_gelu",
    norm_eps=1e-5,
    patch_bias=False,
    class_token=True,
    norm_before=True,
    norm_after=False,
    mean=(0.48145466, 0.4578275, 0.40821073),
    std=(0.26862954, 0.26130258, 0.27577711),
    unused_blocks=1,
    sizes={
        "clip-l-336": {
            "image_px": 336,
            "width": 1024,
            "depth": 23,  # Of 24.
            "mlp_dim": 4096,
            "num_heads": 16,
        },
        "clip-l-224": {"width": 1024, "depth": 23, "mlp_dim": 4096, "num_heads": 16},
        "clip-b-224": {
            "patch_px": 16,
            "width": 768,
            "depth": 11,
            "mlp_dim": 3072,
            "num_heads": 12,
        },
    },
)
