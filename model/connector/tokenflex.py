"""TokenFLEX: pooling to any square grid, and a gated MLP.

Source: TokenFLEX, arXiv:2504.03154: an adaptive average pooling, then SwiGLU; one number of tokens
is drawn for each training step. Where the layers stand is [inferred]: a norm before the MLP, and
the projector that all methods share after it. The paper's 64, 144 and 256 tokens of 256 features
are the grids of 8, 12 and 16; smaller ones are here for the comparison.
"""

import typing

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int32

from model.connector.config import ConnectedConfig
from model.connector.registry import CONNECTORS
from model.vision.layers import LayerNorm, Linear


class TokenFlex(nnx.Module):
    """Pools the features to a square of `bucket` cells, and weighs their channels."""

    routing: typing.ClassVar = CONNECTORS["tokenflex"].routing
    flops = staticmethod(CONNECTORS["tokenflex"].flops)

    def __init__(self, cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> None:
        width = cfg.vision.width
        hidden = cfg.connector.mlp_dim or cfg.vision.mlp_dim
        self.norm = LayerNorm(width)
        self.gate = Linear(width, hidden, rngs=rngs)
        self.up = Linear(width, hidden, rngs=rngs)
        self.down = Linear(hidden, width, rngs=rngs)

    def __call__(
        self, features: Float[Array, "B P C"], *, bucket: int, budget: Int32[Array, ""]
    ) -> Float[Array, "B N C"]:
        """Returns the cells (see `base.Connector`); budget and bucket are always equal."""
        del budget
        cells = self.norm(adaptive_pool(features, bucket))
        return self.down(jax.nn.silu(self.gate(cells)) * self.up(cells))


def adaptive_pool(features: Float[Array, "B P C"], num_tokens: int) -> Float[Array, "B N C"]:
    """Returns the mean of each cell of a square grid, whose cells overlap where none would fit.

    Source: torch's `AdaptiveAvgPool2d`.
    """
    batch, patches, width = features.shape
    grid, side = round(patches**0.5), round(num_tokens**0.5)
    # Cells of one axis, 16 places in 12 cells: 0 1, 1 2, 2 3, 4 5, 5 6, 6 7, … Each is a row of
    # weights, so that the mean over both axes is two small products.
    cells = np.arange(side)
    first, last = cells * grid // side, -(-(cells + 1) * grid // side)
    places = np.arange(grid)
    inside = (places >= first[:, None]) & (places < last[:, None])
    weights = jnp.asarray(inside / inside.sum(axis=1, keepdims=True), features.dtype)
    square = features.reshape(batch, grid, grid, width)
    pooled = jnp.einsum("ar,bs,nrsc->nabc", weights, weights, square)
    return pooled.reshape(batch, num_tokens, width)
