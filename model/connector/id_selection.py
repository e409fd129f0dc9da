"""ID-Selection: features that are important and unlike each other, chosen without training.

Source: arXiv:2604.05601 (April 2026), equations 7 to 9: the token i of the highest score S is
chosen, and every other score falls by how near its token is, S_j - exp(-20 (1 - cos_ij)^2) |S_i|.
The paper has no | |. A score may fall below 0: where all features look alike, as those of a tower
do, all soon have, and without it the next choice would raise what is near it, copies first [ours].
The paper takes S from the class token's attention, or from the text's; a connector sees features
alone, so S is a feature's similarity to the mean of its image's, between 0 and 1 [ours].
"""

import typing

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int32

from model.connector.config import ConnectedConfig
from model.connector.registry import CONNECTORS

DECAY = 20.0
"""How fast the fall of a score ends with distance: gamma of the paper."""


class IdSelection(nnx.Module):
    """Chooses `budget` of the features, in their order in the image; it has no parameters."""

    routing: typing.ClassVar = CONNECTORS["id_selection"].routing
    flops = staticmethod(CONNECTORS["id_selection"].flops)

    def __init__(self, cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> None:
        del cfg, rngs

    def __call__(
        self, features: Float[Array, "B P C"], *, bucket: int, budget: Int32[Array, ""]
    ) -> Float[Array, "B N C"]:
        """Returns the chosen features, then those that a larger budget would choose too."""
        # Each choice depends on the ones before it alone, so the first of a larger budget's are
        # those of a smaller one. They are then put into the order of the image:
        #
        #     chosen in turn    9  2  5 | 7  4      budget 3 of a bucket of 5
        #     in slots          2  5  9 | 7  4
        chosen = choose(jax.lax.stop_gradient(features), bucket)
        patches = features.shape[1]
        turn = jnp.broadcast_to(jnp.arange(bucket)[None], chosen.shape)
        places = jnp.argsort(jnp.where(turn < budget, chosen, patches + turn), axis=1)
        chosen = jnp.take_along_axis(chosen, places, axis=1)
        return jnp.take_along_axis(features, chosen[:, :, None], axis=1)


def choose(features: Float[Array, "B P C"], count: int) -> Int32[Array, "B N"]:
    """Returns the numbers of `count` features of each image, in the order of their choice."""
    full = features.astype(jnp.float32)
    unit = full / jnp.maximum(jnp.linalg.norm(full, axis=-1, keepdims=True), 1e-12)
    cosine = jnp.einsum("bpc,bqc->bpq", unit, unit)
    nearness = jnp.exp(-DECAY * jnp.square(jnp.maximum(1.0 - cosine, 0.0)))
    # The mean of all cosines with a feature is its product with the mean of the unit features.
    scores = jnp.mean(cosine, axis=2)
    low, high = (reduce(scores, axis=1, keepdims=True) for reduce in (jnp.min, jnp.max))
    scores = (scores - low) / jnp.maximum(high - low, 1e-12)

    def body(
        i: Array, state: tuple[Float[Array, "B P"], Int32[Array, "B N"]]
    ) -> tuple[Float[Array, "B P"], Int32[Array, "B N"]]:
        scores, chosen = state
        best = jnp.argmax(scores, axis=1)
        row = jnp.take_along_axis(nearness, best[:, None, None], axis=1)[:, 0]
        score = jnp.take_along_axis(scores, best[:, None], axis=1)
        is_best = jnp.arange(scores.shape[1])[None] == best[:, None]
        scores = jnp.where(is_best, -jnp.inf, scores - row * jnp.abs(score))  # Never chosen again.
        return scores, chosen.at[:, i].set(best.astype(jnp.int32))

    empty = jnp.zeros((features.shape[0], count), jnp.int32)
    return jax.lax.fori_loop(0, count, body, (scores, empty))[1]
