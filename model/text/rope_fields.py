"""What transformers' `config.json` says of rotary positions, in its two spellings.

since 2025   "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, …}
before       "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, …}
"""

from typing import Any

from model.config_fields import HuggingFaceConfig

Rope = tuple[float, dict[str, Any] | None]
"""Base wavelength, and the fields of `RopeScaling` or None."""


def read_rope(text: HuggingFaceConfig, base: float, layers: str = "") -> Rope:
    """Returns the rotary positions of a decoder.

    Args:
      text: the section of the decoder.
      base: transformers' default of the base wavelength.
      layers: "full_attention" or "sliding_attention", where layers differ; "" where all are alike.

    Raises:
      ValueError: if positions are stretched in a way that our model does not know.
    """
    rope = text.get("rope_parameters") or {}
    if layers and layers in rope:
        rope = rope[layers] or {}
    rope = {**rope, **(text.get("rope_scaling") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    base = float(rope.get("rope_theta", text.get("rope_theta", base)))
    if kind == "default":
        return base, None
    if kind == "linear":
        return base, {"kind": kind, "factor": float(rope["factor"])}
    if kind == "llama3":
        return base, {
            "kind": kind,
            "factor": float(rope["factor"]),
            "low_freq_factor": float(rope["low_freq_factor"]),
            "high_freq_factor": float(rope["high_freq_factor"]),
            "original_length": int(rope["original_max_position_embeddings"]),
        }
    raise ValueError(
        f"config.json: text_config's rope_type must be default, linear or llama3, got {kind!r}."
    )


def read_window(text: HuggingFaceConfig, default: int, period: int) -> int:
    """Returns the reach of local layers, 0 if all layers see everything.

    Args:
      text: the section of the decoder.
      default: transformers' default of the reach.
      period: of this many layers in turn the last sees everything.

    Raises:
      ValueError: if other layers are local.
    """
    window = int(text.get("sliding_window", default) or 0)
    layers = text.get("layer_types")
    if layers is None:
        return window
    if all(layer == "full_attention" for layer in layers):
        return 0
    expected = [
        "sliding_attention" if (i + 1) % period else "full_attention" for i in range(len(layers))
    ]
    if layers != expected:
        raise ValueError(
            "config.json: text_config.layer_types must be full_attention alone, or in every "
            f"{period}th layer with sliding_attention in the others, got {layers}."
        )
    return window
