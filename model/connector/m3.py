"""M3: average pooling to nested square grids.

Source: Matryoshka Multimodal Models, arXiv:2405.17430; `llava/model/llava_arch.py`. The original
pools after its projector; with an affine projector the order makes no difference.
"""

from flax import nnx
from jaxtyping import Array, Float, Int32

from model.connector.base import pool


class M3(nnx.Module):
    """Pools the features to `bucket` cells; it has no parameters."""

    def __call__(
        self, features: Float[Array, "B P C"], *, bucket: int, budget: Int32[Array, ""]
    ) -> Float[Array, "B N C"]:
        """Returns the pooled grid (see `base.Connector`); budget and bucket are always equal."""
        del budget
        return pool(features, bucket)
