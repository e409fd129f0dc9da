"""Facts and published sizes of Gemma 3's decoder.

Source: transformers 5.24 `models/gemma3`; of a prefix, google-deepmind/gemma `gm/nn/_modules.py`.
"""

from model.text.family import DecoderFamily

_SHARED = {"rope_base": 1_000_000.0, "local_rope_base": 10_000.0, "head_dim": 256}
_SCALED = {"rope_scaling": {"kind": "linear", "factor": 8.0}, "sliding_window": 1024, **_SHARED}
"""Of the sizes that see pictures, and have a context of 128k."""
# The published vocabularies have 262,144 rows and, where pictures are seen, 64 more. Ours are the
# 262,144 pieces and the 1,152 tokens of places and masks.
_VOCABULARY = {"vocab_size": 262_144 + 1152}

FAMILY = DecoderFamily(
    norms_after=True,
    head_norms=True,
    norm_offset=1.0,
    activation="gelu_tanh",
    scaled_embedding=True,
    softcaps=False,
    local_period=6,
    whole_prefix=False,
    sizes={
        "gemma3-1b": {
            **_SHARED,
            **_VOCABULARY,
            "sliding_window": 512,
            "width": 1152,
            "depth": 26,
            "mlp_dim": 6912,
            "num_heads": 4,
            "num_kv_heads": 1,
        },
        "gemma3-4b": {
            **_SCALED,
            **_VOCABULARY,
            "width": 2560,
            "depth": 34,
            "mlp_dim": 10240,
            "num_heads": 8,
            "num_kv_heads": 4,
        },
        "gemma3-12b": {
            **_SCALED,
            **_VOCABULARY,
            "width": 3840,
            "depth": 48,
            "mlp_dim": 15360,
            "num_heads": 16,
            "num_kv_heads": 8,
        },
        "gemma3-27b": {
            **_SCALED,
            **_VOCABULARY,
            "width": 5376,
            "depth": 62,
            "mlp_dim": 21504,
            "num_heads": 32,
            "num_kv_heads": 16,
            "head_dim": 128,
            "query_scale": 168,
        },
    },
)
