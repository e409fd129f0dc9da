"""Layers that give the baselines PARCEL's capacity: pre-norm, a residual around each."""

from flax import nnx
from jaxtyping import Array, Bool, Float

from model.connector.config import ConnectedConfig
from model.vision.layers import Attention, LayerNorm, Mlp


class SelfAttention(nnx.Module):
    """Every soft token reads the others."""

    def __init__(self, cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> None:
        self.norm = LayerNorm(cfg.vision.width)
        self.attn = Attention(cfg.vision.width, cfg.connector.num_heads, rngs=rngs)

    def __call__(
        self, x: Float[Array, "B N C"], *, visible: Bool[Array, " N"] | None = None
    ) -> Float[Array, "B N C"]:
        """Returns the tokens after reading those that are `visible`; None is all."""
        y = self.norm(x)
        return x + self.attn(y, y, y, visible=visible)


class ResidualMlp(nnx.Module):
    """An MLP on every soft token, of PARCEL's size."""

    def __init__(self, cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> None:
        width = cfg.vision.width
        self.norm = LayerNorm(width)
        self.mlp = Mlp(width, cfg.connector.mlp_dim or cfg.vision.mlp_dim, rngs=rngs)

    def __call__(self, x: Float[Array, "B N C"]) -> Float[Array, "B N C"]:
        """Returns the transformed tokens."""
        return x + self.mlp(self.norm(x))
