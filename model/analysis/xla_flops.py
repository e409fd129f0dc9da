"""FLOPs of a connector as XLA counts them in its program, for connectors without a formula."""

import functools
import typing

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from model.config import ModelConfig
from model.connector.build import build_connector


@functools.cache
def counted_flops(cfg: ModelConfig, budget: int) -> int:
    """Returns the FLOPs of the connector for one image, at a budget, without compiling it.

    Unlike in formulas, norms, softmax and activations count; the body of a loop counts once.
    """
    structure, params = nnx.split(nnx.eval_shape(lambda: build_connector(cfg, rngs=nnx.Rngs(0))))
    shape = (1, cfg.vision.num_patches, cfg.vision.width)

    def run(
        params: typing.Any, features: Float[Array, "1 P C"], budget_: typing.Any
    ) -> Float[Array, "1 N C"]:
        return nnx.merge(structure, params)(features, bucket=budget, budget=budget_)

    features = jax.ShapeDtypeStruct(shape, np.float32)
    lowered = jax.jit(run).lower(params, features, jax.ShapeDtypeStruct((), np.int32))
    cost: typing.Any = lowered.cost_analysis()
    return round(cost.get("flops", 0.0))
