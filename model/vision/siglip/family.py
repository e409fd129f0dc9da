"""Facts and published sizes of SigLIP. Source: big_vision `models/vit.py`."""

from model.vision.family import TowerFamily

FAMILY = TowerFamily(
    activation="gelu_tanh",
    norm_eps=1e-6,
    patch_bias=True,
    class_token=False,
    norm_before=False,
    norm_after=True,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    unused_blocks=0,
    sizes={
        "siglip-so400m": {},  # What `VisionConfig` is by itself.
        "siglip-base": {
            "width": 768,
            "depth": 12,
            "mlp_dim": 3072,
            "num_heads": 12,
            "patch_px": 16,
        },
        "siglip-large": {
            "width": 1024,
            "depth": 24,
            "mlp_dim": 4096,
            "num_heads": 16,
            "patch_px": 16,
            "image_px": 256,
        },
    },
)
