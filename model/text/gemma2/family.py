"""Facts and published sizes of Gemma 2.

Source: google-deepmind/gemma `gm/nn/_gemma.py`; of a prefix, transformers 5.24 `models/paligemma`.
"""

from model.text.family import DecoderFamily

FAMILY = DecoderFamily(
    norms_after=True,
    head_norms=False,
    norm_offset=1.0,
    activation="gelu_tanh",
    scaled_embedding=True,
    softcaps=True,
    local_period=2,
    whole_prefix=True,
    # Windows are off, as big_vision trains PaliGemma 2; Gemma 2 itself and transformers have 4096.
    sizes={
        "gemma2-2b": {},  # What `TextConfig` is by itself.
        "gemma2-9b": {
            "width": 3584,
            "depth": 42,
            "mlp_dim": 14336,
            "num_heads": 16,
            "num_kv_heads": 8,
        },
        "gemma2-27b": {
            "width": 4608,
            "depth": 46,
            "mlp_dim": 36864,
            "num_heads": 32,
            "num_kv_heads": 16,
            "head_dim": 128,
            "query_scale": 144,
        },
    },
)
