"""Connectors as somebody else writes them: one that keeps every promise, and some that do not."""

import typing

import jax.numpy as jnp
from flax import nnx

from model.connector.base import pool
from model.connector.config import ConnectedConfig
from model.connector.parcel import Parcel
from model.connector.routing import Routing
from model.vision.layers import Attention, LayerNorm


class Prefix(nnx.Module):
    """Queries that read the features only."""

    routing: typing.ClassVar = Routing(reads="nothing")
    feature_attention = "attn"

    def __init__(self, cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> None:
        width = cfg.vision.width
        bank = nnx.initializers.normal(0.5)(rngs.params(), (cfg.vision.num_patches, width))
        self.queries = nnx.Param(bank)
        self.norm = LayerNorm(width)
        self.attn = Attention(width, cfg.connector.num_heads, rngs=rngs)

    def __call__(self, features, *, bucket, budget):
        """Returns each query, and what it read."""
        del budget
        x = self.queries[:bucket].astype(features.dtype)
        x = jnp.broadcast_to(x[None], (len(features), bucket, features.shape[-1]))
        seen = self.norm(features)
        return x + self.attn(x, seen, seen)


class Stated(Prefix):
    """States its cost, and budgets one by one."""

    routing: typing.ClassVar = Routing(sizes=(6, 14, 250, 512), reads="nothing")

    @staticmethod
    def flops(cfg: ConnectedConfig, budget: int) -> int:
        """Returns a count of its own."""
        return 7 * budget * cfg.vision.width


class FourAnchors(Parcel):
    """PARCEL with 4 anchors at every budget."""

    routing: typing.ClassVar = Routing(anchor_grids=(2,), reads="anchors")


class ReadsBeyond(Prefix):
    """Breaks masking: every token reads all slots."""

    def __call__(self, features, *, bucket, budget):
        x = super().__call__(features, bucket=bucket, budget=budget)
        return x + jnp.mean(x, axis=1, keepdims=True)


class LooksAtTheBudget(Prefix):
    """Breaks programs: needs the budget's value."""

    def __call__(self, features, *, bucket, budget):
        return super().__call__(features, bucket=int(budget), budget=budget)


class TooFew(Prefix):
    """Breaks programs: leaves a slot out."""

    def __call__(self, features, *, bucket, budget):
        return super().__call__(features, bucket=bucket, budget=budget)[:, 1:]


class Promotes(Prefix):
    """Breaks dtypes: computes in float32 whatever it is given."""

    def __call__(self, features, *, bucket, budget):
        wide = features.astype(jnp.float32)
        return super().__call__(wide, bucket=bucket, budget=budget)


class HalfParameters(Prefix):
    """Breaks dtypes: has bfloat16 parameters."""

    def __init__(self, cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(cfg, rngs=rngs)
        self.scale = nnx.Param(jnp.ones((cfg.vision.width,), jnp.bfloat16))


class SeesOthers(Prefix):
    """Breaks images: mixes the batch."""

    def __call__(self, features, *, bucket, budget):
        return super().__call__(features[::-1] + features, bucket=bucket, budget=budget)


class SeesThoseBefore(Prefix):
    """Breaks images: each one reads those before it."""

    def __call__(self, features, *, bucket, budget):
        return super().__call__(jnp.cumsum(features, axis=0), bucket=bucket, budget=budget)


class ScaledGrids(nnx.Module):
    """Pools to one of several grids, each with a scale of its own."""

    routing: typing.ClassVar = Routing(grids=(2, 4, 8, 16))

    def __init__(self, cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> None:
        del rngs
        width = cfg.vision.width
        for side in self.routing.grids:
            setattr(self, f"scale{side}", nnx.Param(jnp.full((1, 1, width), 0.07)))

    def __call__(self, features, *, bucket, budget):
        """Returns means of cells, by a scale that has a root."""
        del budget
        scale = getattr(self, f"scale{int(bucket**0.5)}")
        return pool(features, bucket) * jnp.sqrt(scale[...]).astype(features.dtype)


class Untrained(Prefix):
    """Breaks gradients: a parameter that nothing reads."""

    def __init__(self, cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(cfg, rngs=rngs)
        self.spare = nnx.Param(jnp.ones((5,)))


class Infinite(Prefix):
    """Breaks gradients: a square root at zero."""

    def __call__(self, features, *, bucket, budget):
        x = super().__call__(features, bucket=bucket, budget=budget)
        return x + jnp.sqrt(jnp.abs(x - x))


class OtherRows(Prefix):
    """Breaks nesting: each budget takes other rows of the bank."""

    def __call__(self, features, *, bucket, budget):
        rows = (budget + jnp.arange(bucket)) % len(self.queries[...])
        x = self.queries[...][rows].astype(features.dtype)
        x = jnp.broadcast_to(x[None], (len(features), bucket, features.shape[-1]))
        return x + self.attn(x, features, features)


class WithoutRouting(nnx.Module):
    """Says no budgets."""


class OtherRouting(Prefix):
    """States its budgets in words."""

    routing: typing.ClassVar = "even"


NOT_A_CLASS = 3
