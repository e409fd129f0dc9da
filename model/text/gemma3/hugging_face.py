"""What transformers' `config.json` says of a Gemma 3's decoder. Source: its Gemma3TextConfig."""

from typing import Any

from model.config_fields import HuggingFaceConfig, check_fixed
from model.text.gemma2.hugging_face import read_heads
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
    # Layers that see everything and local ones have rotary positions of their own; in the older
    # spelling, those of local layers are one field of another name.
    base, scaling = read_rope(text, 1_000_000.0, "full_attention")
    local = {**text, "rope_theta": text.get("rope_local_base_freq", 10_000.0), "rope_scaling": None}
    local_base, stretched = read_rope(local, 10_000.0, "sliding_attention")
    if stretched:
        raise ValueError("config.json: text_config's sliding layers must have rope_type default.")
    return {
        **read_heads(text),
        "rope_base": base,
        "rope_scaling": scaling,
        "local_rope_base": local_base,
        "sliding_window": read_window(text, 4096, period=6),
    }
