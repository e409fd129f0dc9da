"""Names of Gemma 2's parameters in big_vision and in Hugging Face."""

from model.layouts import (
    HF_DECODER,
    SAME,
    TRANSPOSED,
    Layout,
    Names,
    ParameterName,
    heads_first,
    key_heads,
    merged_heads,
    query_heads,
)

_HF_LAYER = HF_DECODER + "layers.{i}."
_ATTN, _MLP = "llm/layers/attn/", "llm/layers/mlp/"
_KEYS = heads_first(key_heads)
# big_vision packs two of our arrays into one; the number is the index of ours on axis 1:
#
#     kv_einsum/w     (layers, 2, …)   0 keys, 1 values
#     gating_einsum   (layers, 2, …)   0 gate, 1 up
_MATRICES: tuple[tuple[str, str, int | None, Layout, str], ...] = (
    ("query", _ATTN + "q_einsum/w", None, heads_first(query_heads), "self_attn.q_proj"),
    ("key", _ATTN + "kv_einsum/w", 0, _KEYS, "self_attn.k_proj"),
    ("value", _ATTN + "kv_einsum/w", 1, _KEYS, "self_attn.v_proj"),
    ("out", _ATTN + "attn_vec_einsum/w", None, merged_heads(1, query_heads), "self_attn.o_proj"),
    ("gate", _MLP + "gating_einsum", 0, SAME, "mlp.gate_proj"),
    ("up", _MLP + "gating_einsum", 1, SAME, "mlp.up_proj"),
    ("down", _MLP + "linear", None, SAME, "mlp.down_proj"),
)
_NORMS = (
    ("pre_attn_norm", "pre_attention_norm", "input_layernorm"),
    ("post_attn_norm", "post_attention_norm", "post_attention_layernorm"),
    ("pre_mlp_norm", "pre_ffw_norm", "pre_feedforward_layernorm"),
    ("post_mlp_norm", "post_ffw_norm", "post_feedforward_layernorm"),
)

NAMES: Names = (
    *(
        ParameterName(
            f"text/blocks/{layer}", f"{_HF_LAYER}{hf}.weight", TRANSPOSED, bv, layout, part
        )
        for layer, bv, part, layout, hf in _MATRICES
    ),
    *(
        ParameterName(
            f"text/blocks/{layer}/scale",
            f"{_HF_LAYER}{hf}.weight",
            big_vision=f"llm/layers/{bv}/scale",
        )
        for layer, bv, hf in _NORMS
    ),
    # Beside the blocks: the embedding, which is the output matrix, too, and the last norm.
    ParameterName(
        "text/embedding",
        HF_DECODER + "embed_tokens.weight",
        big_vision="llm/embedder/input_embedding",
    ),
    ParameterName(
        "text/final_norm/scale", HF_DECODER + "norm.weight", big_vision="llm/final_norm/scale"
    ),
)
