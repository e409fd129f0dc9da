"""What transformers' `config.json` says of a Llama. Source: its LlamaConfig."""

from typing import Any

from model.config_fields import HuggingFaceConfig, check_fixed
from model.text.rope_fields import read_rope

MODEL_TYPES = ("llama",)


def read(text: HuggingFaceConfig) -> dict[str, Any]:
    """Returns the fields of `TextConfig` that shapes do not show."""
    fixed = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu"}
    check_fixed(text, "text_config", fixed)
    heads, width = text.get("num_attention_heads", 32), text.get("hidden_size", 4096)
    base, scaling = read_rope(text, 10_000.0)
    return {
        "num_heads": heads,
        "num_kv_heads": text.get("num_key_value_heads") or heads,
        "head_dim": text.get("head_dim") or width // heads,
        "rope_base": base,
        "rope_scaling": scaling,
        "norm_eps": float(text.get("rms_norm_eps", 1e-6)),
        "tied": bool(text.get("tie_word_embeddings", False)),
    }
