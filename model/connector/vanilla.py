"""PaliGemma's own connector: every feature is a soft token, 256 at 224 px and 1024 at 448 px."""

import typing

from flax import nnx
from jaxtyping import Array, Float, Int32

from model.connector.config import ConnectedConfig
from model.connector.registry import CONNECTORS


class Vanilla(nnx.Module):
    """Passes the features on; it has no parameters."""

    routing: typing.ClassVar = CONNECTORS["vanilla"].routing
    flops = staticmethod(CONNECTORS["vanilla"].flops)

    def __init__(self, cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> None:
        del cfg, rngs

    def __call__(
        self, features: Float[Array, "B P C"], *, bucket: int, budget: Int32[Array, ""]
    ) -> Float[Array, "B N C"]:
        """Returns the features (see `base.Connector`)."""
        del bucket, budget
        return features
