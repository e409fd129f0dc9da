"""Facts and published sizes of Llama. Source: transformers 5.24 `models/llama`."""

from model.text.family import DecoderFamily

_SEVEN_B = {
    "vocab_size": 32_000 + 1152,  # Llama 2's pieces, and the tokens of places and masks.
    "width": 4096,
    "depth": 32,
    "mlp_dim": 11008,
    "num_heads": 32,
    "num_kv_heads": 32,
    "head_dim": 128,
    "norm_eps": 1e-5,
    "tied": False,
}
_LLAMA3 = {
    "vocab_size": 128_256 + 1152,
    "rope_base": 500_000.0,
    "norm_eps": 1e-5,
    "num_kv_heads": 8,
}
_SCALED = {"kind": "llama3", "factor": 32.0}

FAMILY = DecoderFamily(
    norms_after=False,
    head_norms=False,
    norm_offset=0.0,
    activation="silu",
    scaled_embedding=False,
    softcaps=False,
    local_period=1,
    whole_prefix=False,
    sizes={
        "vicuna-7b": _SEVEN_B,
        "vicuna-13b": {
            **_SEVEN_B,
            "width": 5120,
            "depth": 40,
            "mlp_dim": 13824,
            "num_heads": 40,
            "num_kv_heads": 40,
        },
        "llama3.2-1b": {
            **_LLAMA3,
            "rope_scaling": _SCALED,
            "width": 2048,
            "depth": 16,
            "mlp_dim": 8192,
            "num_heads": 32,
            "head_dim": 64,
        },
        "llama3.2-3b": {
            **_LLAMA3,
            "rope_scaling": _SCALED,
            "width": 3072,
            "depth": 28,
            "mlp_dim": 8192,
            "num_heads": 24,
            "head_dim": 128,
        },
        "llama3.1-8b": {
            **_LLAMA3,
            "rope_scaling": {**_SCALED, "factor": 8.0},
            "width": 4096,
            "depth": 32,
            "mlp_dim": 14336,
            "num_heads": 32,
            "head_dim": 128,
            "tied": False,
        },
    },
)
