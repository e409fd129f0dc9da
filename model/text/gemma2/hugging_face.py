"""What transformers' `config.json` says of a Gemma 2. Source: its Gemma2Config."""

from typing import Any

from model.config_fields import HuggingFaceConfig, check_fixed
from model.text.rope_fields import read_rope, read_window

MODEL_TYPES = ("gemma2",)


def read(text: HuggingFaceConfig) -> dict[str, Any]:
    """Returns the fields of `TextConfig` that shapes do not show."""
    fixed = {
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "hidden_activation": "gelu_pytorch_tanh",
    }
    check_fixed(text, "text_config", fixed)
    base, scaling = read_rope(text, 10_000.0)
    return {
        **read_heads(text),
        "rope_base": base,
        "rope_scaling": scaling,
        "sliding_window": read_window(text, 4096, period=2),
    }


def read_heads(text: HuggingFaceConfig) -> dict[str, Any]:
    """Returns the fields of `TextConfig` that say what heads a decoder has, as of Gemma 3's too."""
    # transformers writes only settings that differ from its defaults, so what is absent has the
    # default of its config class.
    head_dim, scale = text.get("head_dim", 256), text.get("query_pre_attn_scalar", 256)
    return {
        "num_heads": text.get("num_attention_heads", 8),
        "num_kv_heads": text.get("num_key_value_heads", 4),
        "head_dim": head_dim,
        "query_scale": 0.0 if scale == head_dim else float(scale),
    }


def read_softcaps(text: HuggingFaceConfig) -> tuple[float, float]:
    """Returns the soft-caps of attention's and of the output's logits; null there is 0 here."""
    return (
        float(text.get("attn_logit_softcapping", 50.0) or 0.0),
        float(text.get("final_logit_softcapping", 30.0) or 0.0),
    )
