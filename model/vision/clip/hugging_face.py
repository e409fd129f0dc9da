"""What transformers' `config.json` says of CLIP's image tower. Source: its CLIPVisionConfig."""

from typing import Any

from model.config_fields import HuggingFaceConfig, check_fixed

MODEL_TYPES = ("clip_vision_model",)


def read(vision: HuggingFaceConfig) -> dict[str, Any]:
    """Returns the fields of `VisionConfig` that shapes do not show."""
    check_fixed(vision, "vision_config", {"layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"})
    return {"num_heads": vision.get("num_attention_heads", 12)}
