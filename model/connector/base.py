"""The interface of every connector: image features in, soft tokens at a budget out.

    class Ripple(nnx.Module):                     # a user's own connector
        routing = Routing(reads="nothing")        # serves every even budget

        def __init__(self, cfg, *, rngs): …       # cfg.vision.width, .num_patches, cfg.connector…
        def __call__(self, features, *, bucket, budget): …

`model.connector.contract` checks these requirements.
"""

import typing

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32


class Connector(typing.Protocol):
    """One connector. The projector to the decoder's width comes after it and is shared by all.

    Its class is a `flax.nnx.Module` with float32 parameters, constructed as `Class(cfg, rngs=rngs)`
    from a `ConnectedConfig`. The class, a user's own or a built-in one, must also have

      routing: a `routing.Routing`, which says what budgets it serves.

    and it may have

      feature_attention: path to the `vision.layers.Attention` with which its queries read the
        features, such as "attn" or "mqt.attn": `parcel model spectral` shows where they look.
      flops: a static method (cfg, budget) -> FLOPs for one image; without it XLA counts.
    """

    def __call__(
        self, features: Float[Array, "B P C"], *, bucket: int, budget: Int32[Array, ""]
    ) -> Float[Array, "B N C"]:
        """Returns `bucket` slots per image, the first `budget` of which are soft tokens.

        The other slots hold unspecified values, on which the first ones do not depend.

        Args:
          features: features of the vision tower, one per patch of a square grid, row by row.
          bucket: number of slots, static; one of the connector's shapes.
          budget: number of soft tokens, at most `bucket` and with as many anchors.
        """
        ...


def pool(features: Float[Array, "B P C"], num_tokens: int) -> Float[Array, "B N C"]:
    """Returns the mean of each cell of a square grid of `num_tokens` cells, row by row."""
    batch, patches, width = features.shape
    if num_tokens == patches:
        return features
    grid, side = round(patches**0.5), round(num_tokens**0.5)
    if side * side != num_tokens or grid % side:
        raise ValueError(
            f"num_tokens must be the square of a divisor of {grid} (the patch grid's side), "
            f"got {num_tokens}."
        )
    # (B, side, kernel, side, kernel, C): a cell is kernel x kernel neighbouring patches. A grid of
    # 4 in 4 tokens is the means of a, b, c and d:
    #
    #     a a b b
    #     a a b b
    #     c c d d
    #     c c d d
    kernel = grid // side
    cells = features.reshape(batch, side, kernel, side, kernel, width)
    return jnp.mean(cells, axis=(2, 4)).reshape(batch, num_tokens, width)
