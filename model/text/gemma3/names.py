"""Names of Gemma 3's parameters in Hugging Face: Gemma 2's, and the norms of heads."""

from model.layouts import HF_DECODER, Names, ParameterName, without_big_vision
from model.text.gemma2.names import NAMES as GEMMA2

_HEADS = HF_DECODER + "layers.{i}.self_attn."

NAMES: Names = (
    *without_big_vision(GEMMA2, "text/"),
    ParameterName("text/blocks/query_norm/scale", _HEADS + "q_norm.weight"),
    ParameterName("text/blocks/key_norm/scale", _HEADS + "k_norm.weight"),
)
