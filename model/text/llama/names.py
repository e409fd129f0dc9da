"""Names of Llama's parameters in Hugging Face: Gemma 2's but for norms, and an output matrix."""

from model.layouts import HF_DECODER, Names, ParameterName, without_big_vision
from model.text.gemma2.names import NAMES as GEMMA2

_LAYER = HF_DECODER + "layers.{i}."

NAMES: Names = (
    *(name for name in without_big_vision(GEMMA2, "text/") if "_norm/" not in name.ours),
    ParameterName("text/blocks/pre_attn_norm/scale", _LAYER + "input_layernorm.weight"),
    # The norm before the MLP, which has this name because it comes after attention.
    ParameterName("text/blocks/pre_mlp_norm/scale", _LAYER + "post_attention_layernorm.weight"),
    ParameterName("text/final_norm/scale", HF_DECODER + "norm.weight"),
    ParameterName("text/head", "lm_head.weight"),
)
