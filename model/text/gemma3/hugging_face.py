"""What transformers' `config.json` says of a Gemma 3's decoder. Source: its Gemma3TextConfig."""

from typing import Any

from model.config_fields import HuggingFaceConfig, check_fixed
from model.text.rope_fields import read_rope, read_window

MODEL_TYPES = ("gemma3_text",)


def read(text: HuggingFaceConfig) -> dict[str, Any]:
    """Returns the fields of `TextConfig` that shapes do not show."""
    fixed = {
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "sliding_window_pattern": 6,
        "use_bidirectional_attention": False,
    }
    check_fixed(text, "text_config", fixed)
    head_dim, scale = text.get("head_dim", 256), text.get("query_pre_attn_scalar", 256)
    base, scaling = read_rope(text, 1_000_000.0, "full_attention")
    local = {**text, "rope_theta": text.get("rope_local_base_freq", 10_000.0), "rope_scaling": None}
    local_base, stretched = read_rope(local, 10_000.0, "sliding_attention")
    if stretched:
        raise ValueError("config.json: text_config's sliding layers must have rope_type default.")
    return {
        "num_heads": text.get("num_attention_heads", 8),
        "num_kv_heads": text.get("num_key_value_heads", 4),
        "head_dim": head_dim,
        "query_scale": 0.0 if scale == head_dim else float(scale),
        "rope_base": base,
        "rope_scaling": scaling,
        "local_rope_base": local_base,
        "sliding_window": read_window(text, 4096, period=6),
    }
