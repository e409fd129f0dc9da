"""Low-rank adapters of the decoder, while a stage trains; its checkpoint has whole weights.

    state        text/blocks/query, frozen   lora/blocks/query/a, lora/blocks/query/b, trained
    layer        x W + alpha / rank * (x A) B
    checkpoint   text/blocks/query = W + alpha / rank * A B

So nothing after a stage knows of adapters: evaluations, releases and further stages read weights.
Source: LoRA, arXiv:2106.09685.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from model.text.decoder import Adapter
from model.train.lora_config import LoraConfig

LORA = "lora/"
"""Prefix of the paths of adapters."""
_BLOCKS = "text/blocks/"


def adapter_shapes(lora: LoraConfig, params: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Returns path -> shape of the adapters of all layers.

    Args:
      lora: their settings.
      params: path -> parameter, or anything with a shape.
    """
    # A product of three layers of 5 x 7 by rank 2:  a (3, 5, 2), b (3, 2, 7).
    shapes: dict[str, tuple[int, ...]] = {}
    for name in lora.matrices:
        depth, fan_in, fan_out = params[f"{_BLOCKS}{name}"].shape
        shapes[f"{LORA}blocks/{name}/a"] = depth, fan_in, lora.rank
        shapes[f"{LORA}blocks/{name}/b"] = depth, lora.rank, fan_out
    return shapes


def new_adapters(lora: LoraConfig, params: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Returns adapters before the first step: B is 0, so they change nothing yet.

    A is normal with variance 1 / rows, so that x A is about as large as x. It is the same in every
    process.
    """
    rng = np.random.default_rng([seed, *LORA.encode()])

    def draw(path: str, shape: tuple[int, ...]) -> np.ndarray:
        if path.endswith("/b"):
            return np.zeros(shape, np.float32)
        return rng.standard_normal(shape, np.float32) * np.float32(shape[1] ** -0.5)

    return {path: draw(path, shape) for path, shape in adapter_shapes(lora, params).items()}


def adapters_of(lora: LoraConfig, params: Mapping[str, Array]) -> dict[str, Adapter]:
    """Returns matrix -> its adapter for the decoder, given parameters by path."""
    blocks = f"{LORA}blocks/"
    return {
        name: Adapter(params[f"{blocks}{name}/a"], lora.scale * params[f"{blocks}{name}/b"])
        for name in lora.matrices
    }


def whole_weights(
    lora: LoraConfig | None, trained: Mapping[str, jax.Array], frozen: Mapping[str, jax.Array]
) -> Iterator[tuple[str, jax.Array]]:
    """Yields path and float32 value of every parameter, with adapters added to their weights.

    They come one at a time, so that a caller who drops them needs the memory of one. All processes
    that share the arrays must take part.

    Args:
      lora: settings of the adapters; None where there are none.
      trained: the trained parameters and adapters, by path.
      frozen: the frozen parameters, by path.
    """
    names = lora.matrices if lora is not None else ()
    adapted = {f"{_BLOCKS}{name}": f"{LORA}blocks/{name}" for name in names}
    for path, leaf in {**trained, **frozen}.items():
        if path.startswith(LORA):
            continue
        if lora is not None and path in adapted:
            a, b = (trained[f"{adapted[path]}/{factor}"] for factor in "ab")
            leaf = _adding_program(leaf.sharding)(leaf, a, b, np.float32(lora.scale))
        elif leaf.dtype != np.float32:
            leaf = _widening_program(leaf.sharding)(leaf)
        yield path, leaf


@functools.lru_cache(maxsize=32)
def _adding_program(sharding: Any) -> Any:
    def add(
        weight: Float[Array, "N D F"],
        a: Float[Array, "N D r"],
        b: Float[Array, "N r F"],
        scale: Float[Array, ""],
    ) -> Float[Array, "N D F"]:
        # A GPU would round the factors to 10 bits by default.
        product = jnp.einsum("ndr,nrf->ndf", a, b, precision=jax.lax.Precision.HIGHEST)
        return weight.astype(jnp.float32) + scale * product

    return jax.jit(add, out_shardings=sharding)


@functools.lru_cache(maxsize=32)
def _widening_program(sharding: Any) -> Any:
    return jax.jit(lambda x: x.astype(jnp.float32), out_shardings=sharding)
