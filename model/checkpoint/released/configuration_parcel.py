"""Configuration of a released PARCEL checkpoint."""

from typing import Any

from transformers import PretrainedConfig

_PALIGEMMA = {
    "vision": {
        "activation": "gelu_tanh",
        "norm_eps": 1e-6,
        "patch_bias": True,
        "class_token": False,
        "norm_before": False,
        "norm_after": True,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
    },
    "text": {
        "norms_after": True,
        "head_norms": False,
        "norm_offset": 1.0,
        "activation": "gelu_tanh",
        "scaled_embedding": True,
        "local_period": 2,
        "whole_prefix": True,
    },
    "prompt": {"causal": False},
}
_TEXT = {
    "rope_scaling": None,
    "local_rope_base": 0.0,
    "query_scale": 0.0,
    "norm_eps": 1e-6,
    "tied": True,
}
"""What a release of before there were families or prompt templates does not state, and has."""


class ParcelConfig(PretrainedConfig):
    """An image tower, a connector with several budgets, and a decoder.

    Attributes:
      vision, text, connector: settings of the parts, as the checkpoint was trained with them.
      routing: how the connector makes soft tokens: its class `module`, what its queries attend to
        before the features (`reads`), and its numbers of anchors (`anchor_counts`).
      budgets: soft tokens per image that the connector serves, ascending.
      placeholder_id: id of the placeholder for a soft token in `input_ids`.
      attn_softcap, final_softcap: soft-caps of the attention's and the output's logits; 0 is off.
      projector: layers from features to the decoder's width, "linear" or "mlp".
      facts: what layers the families of tower (`vision`) and decoder (`text`) have, and whether the
        template of prompts (`prompt`) is causal; a release of before there were families has none,
        and is SigLIP with Gemma 2, asked as PaliGemma is.
    """

    model_type = "parcel"

    def __init__(
        self,
        vision: dict[str, Any] | None = None,
        text: dict[str, Any] | None = None,
        connector: dict[str, Any] | None = None,
        routing: dict[str, Any] | None = None,
        budgets: list[int] | None = None,
        placeholder_id: int = 0,
        attn_softcap: float = 50.0,
        final_softcap: float = 30.0,
        projector: str = "linear",
        facts: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.vision, self.text = vision or {}, {**_TEXT, **(text or {})}
        self.projector, self.facts = projector, {**_PALIGEMMA, **(facts or {})}
        self.connector, self.routing = connector or {}, routing or {}
        self.budgets, self.placeholder_id = budgets or [], placeholder_id
        self.attn_softcap, self.final_softcap = attn_softcap, final_softcap
        # The names under which transformers' caches and generation look for these.
        self.vocab_size = self.text.get("vocab_size", 0)
        self.hidden_size = self.text.get("width", 0)
        self.num_hidden_layers = self.text.get("depth", 0)
        self.num_attention_heads = self.text.get("num_heads", 0)
        self.num_key_value_heads = self.text.get("num_kv_heads", 0)
        self.head_dim = self.text.get("head_dim", 0)
        super().__init__(**kwargs)
