"""MQT: a prefix of learned queries, one cross-attention; and its control with self-attention.

Source: Matryoshka Query Transformer, arXiv:2405.19315; `multimodal_projector/builder.py`. Its last
matrix is PaliGemma's projector here, as in the PARCEL paper's adaptation. Both serve the even
budgets from 2 to as many as there are patches: 256 at 224 px, 1024 at 448 px.
"""

import typing

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int32

from model.connector.config import ConnectedConfig
from model.connector.registry import CONNECTORS
from model.connector.self_attention import ResidualMlp, SelfAttention
from model.vision.layers import Attention, LayerNorm, repeat_rows, sincos_positions


class Mqt(nnx.Module):
    """Queries attend to the features and never to each other: any prefix of them stands alone."""

    routing: typing.ClassVar = CONNECTORS["mqt"].routing
    flops = staticmethod(CONNECTORS["mqt"].flops)
    feature_attention = "attn"

    def __init__(self, cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> None:
        width, self.grid = cfg.vision.width, cfg.vision.grid
        self.positional_keys = cfg.connector.mqt_keys == "positional"
        shape = (cfg.vision.num_patches, width)
        init = nnx.initializers.truncated_normal(cfg.connector.query_std)
        self.queries = nnx.Param(init(rngs.params(), shape))
        self.query_norm = LayerNorm(width)
        self.key_norm = LayerNorm(width)
        self.value_norm = LayerNorm(width)
        self.attn = Attention(width, cfg.connector.num_heads, rngs=rngs)

    def __call__(
        self, features: Float[Array, "B P C"], *, bucket: int, budget: Int32[Array, ""]
    ) -> Float[Array, "B N C"]:
        """Returns the outputs of the first `bucket` queries (see `base.Connector`)."""
        del budget
        batch, _, width = features.shape
        positions = sincos_positions(self.grid, width, features.dtype)
        bank = self.queries[:bucket].astype(features.dtype) + positions[:bucket]
        queries = repeat_rows(self.query_norm(bank), (batch, bucket, width), features.dtype)
        # The bank is cut before the attention, not after it: queries do not see each other, so the
        # first `bucket` give the same outputs as among all.
        keys = jnp.broadcast_to(positions[None], features.shape)
        if not self.positional_keys:
            keys = keys + features
        return self.attn(queries, self.key_norm(keys), self.value_norm(features))


class MqtSelfAttention(nnx.Module):
    """MQT, then self-attention and an MLP: as many parameters and layers as PARCEL.

    Both come after the cross-attention [inferred]: before it, the queries would read only each
    other, and never an image. Source: PARCEL, section Ablations, "MQT w/ Self-Attention".
    """

    routing: typing.ClassVar = CONNECTORS["mqt_sa"].routing
    flops = staticmethod(CONNECTORS["mqt_sa"].flops)
    feature_attention = "mqt.attn"

    def __init__(self, cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> None:
        self.mqt = Mqt(cfg, rngs=rngs)
        self.attn = SelfAttention(cfg, rngs=rngs)
        self.mlp = ResidualMlp(cfg, rngs=rngs)

    def __call__(
        self, features: Float[Array, "B P C"], *, bucket: int, budget: Int32[Array, ""]
    ) -> Float[Array, "B N C"]:
        """Returns the refined outputs of the first `bucket` queries (see `base.Connector`)."""
        tokens = self.mqt(features, bucket=bucket, budget=budget)
        return self.mlp(self.attn(tokens, visible=jnp.arange(bucket) < budget))
