"""M3: average pooling to nested square grids; and its control with self-attention.

Source: Matryoshka Multimodal Models, arXiv:2405.17430; `llava/model/llava_arch.py`. The original
pools after its projector; with an affine projector the order makes no difference. Where every
step draws one grid, this is PARCEL's one-forward-pass variant of it.

`m3` and `m3_sa` serve 4, 16, 64 and 256 soft tokens at 224 px, and also 1024 at 448 px. The
ablations `avgpool4` and `avgpool2` are the same pooling with one grid for all steps: kernels of
4 x 4 and 2 x 2 patches, which leave 16 and 64 soft tokens at 224 px, 64 and 256 at 448 px.
"""

import typing

from flax import nnx
from jaxtyping import Array, Float, Int32

from model.connector.base import pool
from model.connector.config import ConnectedConfig
from model.connector.registry import CONNECTORS
from model.connector.self_attention import ResidualMlp, SelfAttention


class M3(nnx.Module):
    """Pools the features to `bucket` cells; it has no parameters."""

    routing: typing.ClassVar = CONNECTORS["m3"].routing
    flops = staticmethod(CONNECTORS["m3"].flops)

    def __init__(self, cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> None:
        del cfg, rngs

    def __call__(
        self, features: Float[Array, "B P C"], *, bucket: int, budget: Int32[Array, ""]
    ) -> Float[Array, "B N C"]:
        """Returns the pooled grid (see `base.Connector`); budget and bucket are always equal."""
        del budget
        return pool(features, bucket)


class M3SelfAttention(nnx.Module):
    """Pools, then lets the cells read each other: M3 with as many parameters and layers as PARCEL.

    Two attentions and an MLP [inferred]; the paper says "comparable self-attention blocks".
    Source: PARCEL, section Ablations, "M3 w/ Self-Attention".
    """

    routing: typing.ClassVar = CONNECTORS["m3_sa"].routing
    flops = staticmethod(CONNECTORS["m3_sa"].flops)

    def __init__(self, cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> None:
        self.first = SelfAttention(cfg, rngs=rngs)
        self.second = SelfAttention(cfg, rngs=rngs)
        self.mlp = ResidualMlp(cfg, rngs=rngs)

    def __call__(
        self, features: Float[Array, "B P C"], *, bucket: int, budget: Int32[Array, ""]
    ) -> Float[Array, "B N C"]:
        """Returns the refined grid (see `base.Connector`); budget and bucket are always equal."""
        del budget
        return self.mlp(self.second(self.first(pool(features, bucket))))
