"""Names of SigLIP's parameters in big_vision and in Hugging Face."""

from model.layouts import (
    HF_TOWER,
    OIHW,
    ROWS,
    SAME,
    Layout,
    Names,
    ParameterName,
    linear_names,
    merged_heads,
    vision_heads,
)

UNUSED = "head."
"""Names of the pooling head, which features do not pass, begin with this after the prefix."""
_BV = "img/Transformer/"
_BV_BLOCK, _HF_BLOCK = _BV + "encoderblock/", HF_TOWER + "encoder.layers.{i}."
_BV_ATTN = _BV_BLOCK + "MultiHeadDotProductAttention_0/"


def _siglip_tower_names() -> list[ParameterName]:
    """Returns what the tower has once. Torch's convolution puts the output channels first."""
    patches = HF_TOWER + "embeddings."
    rows: tuple[tuple[str, str, Layout, str, Layout], ...] = (
        ("patches/kernel", f"{patches}patch_embedding.weight", OIHW, "img/embedding/kernel", SAME),
        ("patches/bias", f"{patches}patch_embedding.bias", SAME, "img/embedding/bias", SAME),
        ("positions", f"{patches}position_embedding.weight", SAME, "img/pos_embedding", ROWS),
        ("norm/scale", f"{HF_TOWER}post_layernorm.weight", SAME, f"{_BV}encoder_norm/scale", SAME),
        ("norm/bias", f"{HF_TOWER}post_layernorm.bias", SAME, f"{_BV}encoder_norm/bias", SAME),
    )
    return [
        ParameterName(f"vision/{ours}", hf, hf_layout, bv, bv_layout)
        for ours, hf, hf_layout, bv, bv_layout in rows
    ]


def _siglip_block_names() -> list[ParameterName]:
    # What every block has. Ours and big_vision's arrays hold all layers, stacked on axis 0;
    # Hugging Face has an array per layer, hence `{i}` in its names:
    #
    #     vision/blocks/mlp/up/kernel   (27, 1152, 4304)
    #     …layers.0.mlp.fc1.weight      (4304, 1152)      and 26 more
    names = []
    for layer, bv, hf in (("attn_norm", "0", "layer_norm1"), ("mlp_norm", "1", "layer_norm2")):
        for part, hf_part in (("scale", "weight"), ("bias", "bias")):
            names.append(
                ParameterName(
                    f"vision/blocks/{layer}/{part}",
                    f"{_HF_BLOCK}{hf}.{hf_part}",
                    big_vision=f"{_BV_BLOCK}LayerNorm_{bv}/{part}",
                )
            )
    for layer, bv, hf in (("up", "0", "fc1"), ("down", "1", "fc2")):
        names += linear_names(
            f"vision/blocks/mlp/{layer}",
            f"{_HF_BLOCK}mlp.{hf}",
            f"{_BV_BLOCK}MlpBlock_0/Dense_{bv}",
        )
    # big_vision keeps the heads on an axis of their own; ours are merged, as Hugging Face's.
    for part, hf in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
        names += linear_names(
            f"vision/blocks/attn/{part}",
            f"{_HF_BLOCK}self_attn.{hf}",
            _BV_ATTN + part,
            merged_heads(2, vision_heads),
            merged_heads(1, vision_heads),
        )
    out = "vision/blocks/attn/out", f"{_HF_BLOCK}self_attn.out_proj", _BV_ATTN + "out"
    return names + linear_names(*out, merged_heads(1, vision_heads))


NAMES: Names = (*_siglip_tower_names(), *_siglip_block_names())
