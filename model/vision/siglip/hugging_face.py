"""What transformers' `config.json` says of a SigLIP tower. Source: its SiglipVisionConfig."""

from typing import Any

from model.config_fields import HuggingFaceConfig, check_fixed

MODEL_TYPES = ("siglip_vision_model",)


def read(vision: HuggingFaceConfig) -> dict[str, Any]:
    """Returns the fields of `VisionConfig` that shapes do not show."""
    fixed = {"layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"}
    check_fixed(vision, "vision_config", fixed)
    return {"num_heads": vision.get("num_attention_heads", 12)}
