"""Attention weights of a connector's queries, recorded without a change to its code."""

import functools
import typing

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from model.attention import MASKED
from model.config import ModelConfig
from model.connector.build import build_connector
from model.vision.layers import Attention


class ConnectorAttention(typing.NamedTuple):
    """A connector's output, and the attention weights of its queries.

    Attributes:
      tokens: the soft tokens, not yet projected.
      weights: each query's attention to the features, averaged over heads; each row sums to 1.
        None if there are no queries, or the connector's `feature_attention` does not name theirs.
    """

    tokens: Float[Array, "B N C"]
    weights: Float[Array, "B Q P"] | None


class RecordingAttention:
    """Stand-in for an attention layer that has the same parameters and keeps its weights.

    The programs of training and decoding never hold these weights as one array.
    """

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        self.weights: Float[Array, "B N S"] | None = None

    def __call__(
        self,
        queries: Float[Array, "B N C"],
        keys: Float[Array, "B S C"],
        values: Float[Array, "B S C"],
        *,
        visible: Bool[Array, " S"] | None = None,
    ) -> Float[Array, "B N C"]:
        """Returns the layer's own output (see `Attention`), up to rounding."""
        # The arithmetic of `Attention`, written out. There, weights exist only inside a fused
        # product; here (B, heads, N, S) is an array of its own, which can be kept.
        layer, shape = self.attention, queries.shape
        scale = (shape[-1] // layer.num_heads) ** -0.5
        projected = layer.query(queries) * scale, layer.key(keys), layer.value(values)
        q, k, v = (x.reshape(*x.shape[:2], layer.num_heads, -1) for x in projected)
        logits = jnp.einsum("bnhd,bshd->bhns", q, k, preferred_element_type=jnp.float32)
        if visible is not None:
            logits = jnp.where(visible[None, None, None], logits, MASKED)
        weights = jax.nn.softmax(logits, axis=-1)
        # A mean over heads of rows that each sum to 1: it sums to 1 as well.
        self.weights = jnp.mean(weights, axis=1)
        read = jnp.einsum("bhns,bshd->bnhd", weights.astype(v.dtype), v)
        return layer.out(read.reshape(shape))


@functools.partial(jax.jit, static_argnames=("cfg", "budget"))
def record_attention(
    cfg: ModelConfig,
    params: dict[str, typing.Any],
    features: Float[Array, "B P C"],
    budget: int,
) -> ConnectorAttention:
    """Runs a connector on features, and returns its queries' attention to them as well.

    Args:
      cfg: the model.
      params: parameters of the connector.
      features: features of the vision tower.
      budget: soft tokens per image, one the connector serves.
    """
    # The connector's code runs as it is. Only the layer that it calls is another object:
    #
    #     connector.mqt.attn   Attention  ->  RecordingAttention(Attention), which keeps its weights
    structure, _ = nnx.split(nnx.eval_shape(lambda: build_connector(cfg, rngs=nnx.Rngs(0))))
    connector = nnx.merge(structure, params)
    recorder = _record_features(connector)
    tokens = connector(features, bucket=budget, budget=jnp.int32(budget))
    return ConnectorAttention(tokens, recorder.weights if recorder else None)


def _record_features(connector: typing.Any) -> RecordingAttention | None:
    """Replaces the cross-attention from queries to features by a watched layer, and returns it."""
    path = getattr(connector, "feature_attention", None)
    if path is None:
        return None
    # "mqt.attn": the owner is `connector.mqt`, the name is "attn".
    *owners, name = path.split(".")
    owner = functools.reduce(getattr, owners, connector)
    attention = getattr(owner, name, None)
    if not isinstance(attention, Attention):
        raise ValueError(
            f"{type(connector).__name__}.feature_attention must be the path of an Attention of "
            f"model.vision.layers, got {path!r}, which is {attention!r:.60}."
        )
    recorder = RecordingAttention(attention)
    setattr(owner, name, recorder)
    return recorder
