"""MQT: a prefix of learned queries, one cross-attention; and its control with self-attention.

Source: Matryoshka Query Transformer, arXiv:2405.19315; the class `Resampler` in
`llava/model/multimodal_projector/builder.py` of gordonhu608/MQT-LLaVA at 92c35d0. What differs from
it is listed line by line in docs/explanation/parcel.md. Both serve the even budgets from 2 to as
many as there are patches: 256 at 224 px, 1024 at 448 px.
"""

import typing

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int32

from model.connector.config import ConnectedConfig
from model.connector.registry import CONNECTORS
from model.connector.self_attention import ResidualMlp, SelfAttention
from model.vision.layers import Attention, LayerNorm, repeat_rows

_INIT = nnx.initializers.variance_scaling(0.5, "fan_avg", "uniform")
"""PyTorch draws the matrices of queries, keys and values as one of (3 C, C), by Xavier's rule: its
bound, sqrt(6 / 4 C), is that of a square matrix at half the variance."""
_OUT_INIT = nnx.initializers.normal(0.02)
_OFFICIAL_WIDTH = 1024
"""Width of the official features, CLIP's. Narrower models draw every matrix by Xavier's rule, each
for itself [ours]: the demo, of width 64, does not learn where to look from less, and answers
RefCOCO by chance (20; 56 with these), measured on 28 November 2026."""


def official_positions(grid: int, width: int) -> Float[np.ndarray, "P C"]:
    """Returns the official table of a square grid's places, a row for each, in float16.

    It is that of `vision.layers.sincos_positions`, rounded to float32 wherever the official code
    does: other roundings would move 1 in 2,300 numbers of float16 by a last digit, and tokens at
    448 px by 3e-6.
    """
    # Powers, sines and cosines are those of float64, which all processors round alike.
    powers = np.arange(width // 4, dtype=np.float32) / np.float32(width / 4)
    waves = np.float32(1) / (10_000.0 ** powers.astype(np.float64)).astype(np.float32)
    angles = (np.arange(grid, dtype=np.float32)[:, None] * waves[None]).astype(np.float64)
    axis = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
    columns, rows = np.tile(axis, (grid, 1)), np.repeat(axis, grid, axis=0)
    table = np.concatenate([columns, rows], axis=-1)
    return table.astype(np.float32).astype(np.float16)


class Mqt(nnx.Module):
    """Queries attend to the features and never to each other: any prefix of them stands alone.

    Their keys are the places of the features alone, so where a query looks does not depend on the
    image; `mqt_keys: content` adds the features [ours].
    """

    routing: typing.ClassVar = CONNECTORS["mqt"].routing
    flops = staticmethod(CONNECTORS["mqt"].flops)
    feature_attention = "attn"

    def __init__(self, cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> None:
        width, self.grid = cfg.vision.width, cfg.vision.grid
        self.keys_have_content = cfg.connector.mqt_keys == "content"
        shape = (cfg.vision.num_patches, width)
        # Named `trunc_normal_` in the official file, whose bounds of 2 are 100 deviations.
        init = nnx.initializers.normal(cfg.connector.query_std)
        self.queries = nnx.Param(init(rngs.params(), shape))
        self.query_norm = LayerNorm(width)
        self.key_norm = LayerNorm(width)
        self.value_norm = LayerNorm(width)
        official = {"init": _INIT, "out_init": _OUT_INIT} if width >= _OFFICIAL_WIDTH else {}
        self.attn = Attention(width, cfg.connector.num_heads, rngs=rngs, **official)

    def __call__(
        self, features: Float[Array, "B P C"], *, bucket: int, budget: Int32[Array, ""]
    ) -> Float[Array, "B N C"]:
        """Returns the outputs of the first `bucket` queries (see `base.Connector`)."""
        del budget
        batch, _, width = features.shape
        positions = jnp.asarray(official_positions(self.grid, width), features.dtype)
        bank = self.queries[:bucket].astype(features.dtype) + positions[:bucket]
        queries = repeat_rows(self.query_norm(bank), (batch, bucket, width), features.dtype)
        # The bank is cut before the attention, not after it: queries do not see each other, so the
        # first `bucket` give the same outputs as among all.
        if self.keys_have_content:
            keys = self.key_norm(positions[None] + features)
        else:
            keys = repeat_rows(self.key_norm(positions), features.shape, features.dtype)
        return self.attn(queries, keys, self.value_norm(features))


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
