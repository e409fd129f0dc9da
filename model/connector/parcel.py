"""PARCEL: pooled anchors, and learned queries that refine what the anchors miss.

Source: the PARCEL paper, section 3. Norms, residuals, biases and the place of the MLP are not
stated there; they are SigLIP's here: pre-norm, residual around each part, biases, tanh GELU.

| kind            | anchors       | queries read, before the features | budgets at 224 and 448 px |
|-----------------|---------------|-----------------------------------|---------------------------|
| parcel          | 16, 64 or 256 | anchors and each other            | even, 16 ... 256 or 1024  |
| parcel_fixed4   | 16            | anchors and each other            | even, 16 ... 256 or 1024  |
| parcel_fixed2   | 64            | anchors and each other            | even, 64 ... 256 or 1024  |
| parcel_vit_only | as parcel     | nothing                           | as parcel                 |
| parcel_dual     | as parcel     | anchors                           | as parcel                 |

The last four are its ablations (section Ablations). The paper describes them no further than this
table; the rest is as in PARCEL [inferred].
"""

import typing

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int32

from model.connector import budgets
from model.connector.base import pool
from model.connector.config import ConnectedConfig
from model.connector.registry import CONNECTORS
from model.vision.layers import Attention, LayerNorm, Mlp, repeat_rows, sincos_positions


class Parcel(nnx.Module):
    """Anchors pass unchanged; queries see anchors and each other, then all features, then an MLP.

    ```
    [ anchors | queries ] --self-attention--> queries --cross-attention to features--> MLP
    [ anchors |              ...the queries' outputs...              ]  = soft tokens
    ```
    One ordered bank of queries serves every number of anchors: query 0 is always the first. The
    ablations differ in the keys of the first attention, or leave it out.
    """

    routing: typing.ClassVar = CONNECTORS["parcel"].routing
    flops = staticmethod(CONNECTORS["parcel"].flops)
    feature_attention = "feature_attn"

    def __init__(self, cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> None:
        width, heads = cfg.vision.width, cfg.connector.num_heads
        self.model = cfg
        supported = budgets.supported_budgets(cfg)
        # As many queries as any budget needs beside its anchors; at 224 px, 256 - 64 = 192.
        bank = max(b - budgets.num_anchors(cfg, b) for b in supported)
        init = nnx.initializers.truncated_normal(cfg.connector.query_std)
        self.queries = nnx.Param(init(rngs.params(), (bank, width)))
        self.reads = cfg.connector.routing.reads
        if self.reads != "nothing":
            self.pool_norm = LayerNorm(width)
            self.pool_attn = Attention(width, heads, rngs=rngs)
        self.query_norm = LayerNorm(width)
        self.feature_norm = LayerNorm(width)
        self.feature_attn = Attention(width, heads, rngs=rngs)
        self.mlp_norm = LayerNorm(width)
        hidden = cfg.connector.mlp_dim or cfg.vision.mlp_dim
        self.mlp = Mlp(width, hidden, rngs=rngs)

    def __call__(
        self, features: Float[Array, "B P C"], *, bucket: int, budget: Int32[Array, ""]
    ) -> Float[Array, "B N C"]:
        """Returns anchors, then refined queries (see `base.Connector`)."""
        # All budgets of a bucket have the same anchors, so their number is known without the
        # budget.
        num_anchors = budgets.num_anchors(self.model, bucket)
        anchors = pool(features, num_anchors)
        if bucket == num_anchors:
            return anchors
        queries = self._refine_queries(features, anchors, bucket - num_anchors, budget)
        return jnp.concatenate([anchors, queries], axis=1)

    def _refine_queries(
        self,
        features: Float[Array, "B P C"],
        anchors: Float[Array, "B A C"],
        num_queries: int,
        budget: Int32[Array, ""],
    ) -> Float[Array, "B Q C"]:
        batch, _, width = features.shape
        x = repeat_rows(self.queries[:num_queries], (batch, num_queries, width), features.dtype)
        if self.reads != "nothing":
            x = x + self._attend_to_pool(anchors, x, budget)
        # Then all features: what the anchors' means have lost is read here.
        keys = values = self.feature_norm(features)
        if self.model.connector.parcel_key_positions:
            keys = keys + sincos_positions(self.model.vision.grid, width, keys.dtype)[None]
        x = x + self.feature_attn(self.query_norm(x), keys, values)
        return x + self.mlp(self.mlp_norm(x))

    def _attend_to_pool(
        self, anchors: Float[Array, "B A C"], x: Float[Array, "B Q C"], budget: Int32[Array, ""]
    ) -> Float[Array, "B Q C"]:
        num_anchors = anchors.shape[1]
        # Only the queries' rows of the self-attention are ever read, so only those are computed.
        pooled = self.pool_norm(jnp.concatenate([anchors, x], axis=1))
        keys = pooled[:, :num_anchors] if self.reads == "anchors" else pooled
        # A query beyond the budget must not be seen by those within it; every anchor is within.
        visible = jnp.arange(keys.shape[1]) < budget
        return self.pool_attn(pooled[:, num_anchors:], keys, keys, visible=visible)
