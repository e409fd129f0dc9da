"""Attention of the 3B's decoder by this project and by libraries, for the matrix.

`python -m perf.matrix --config perf.attention --topology h100:1` compiles it for a chip that is not
here: what a prompt of video clips takes, and what training takes. tokamax is of the environment
that has the compilers (`--compiler`); its kernels and their rows are refused without it.
"""

import dataclasses
import functools
import importlib
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float

from infra.chips.topology import Topology
from model import presets
from model.attention import by_einsum
from model.chips.programs import LoweredProgram, devices_of, mesh_of_one_chip, traced_for

_Kernel = Callable[[Array, Array, Array, Array], Array]

IMPLEMENTATIONS = (
    "ours",
    "jax.nn xla, without cap",
    "jax.nn cudnn, without cap",
    "tokamax xla",
    "tokamax xla_chunked",
    "tokamax triton",
    "tokamax mosaic",
)
"""Names of implementations; `jax.nn.dot_product_attention` has no soft-cap."""

ATTENTION_SHAPES = {
    "8 clips of 16 x 256 tokens, forward": (8, 16 * 256 + 128, False),
    "64 rows of 384, forward": (64, 384, False),
    "64 rows of 384, forward and backward": (64, 384, True),
}
"""Name of a case -> rows, their length [tokens], and whether gradients are computed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionKernel:
    """Attention alone, by one implementation, on one chip.

    Attributes:
      implementation: one of `IMPLEMENTATIONS`.
      rows: sequences.
      length: queries and keys of each.
      backward: whether the gradients of queries, keys and values are computed, too.
      num_heads: heads of the queries.
      num_kv_heads: heads of keys and values.
      head_dim: features of a head.
      cap: soft-cap of the logits.
    """

    implementation: str
    rows: int
    length: int
    backward: bool
    num_heads: int = 8
    num_kv_heads: int = 4
    head_dim: int = 256
    cap: float = 50.0

    def lower(self, topology: Topology) -> LoweredProgram:
        """Returns it lowered for one of the chips."""
        mesh = mesh_of_one_chip(topology)
        place = NamedSharding(mesh, P())

        def shape(heads: int) -> jax.ShapeDtypeStruct:
            sides = (self.rows, self.length, heads, self.head_dim)
            return jax.ShapeDtypeStruct(sides, jnp.bfloat16, sharding=place)

        sides = (self.rows, 1, self.length, self.length)
        mask = jax.ShapeDtypeStruct(sides, jnp.bool_, sharding=place)
        keys = shape(self.num_kv_heads)
        args = shape(self.num_heads), keys, keys, mask
        # Libraries ask the default device which kernels it has.
        with traced_for(mesh), jax.default_device(devices_of(topology)[0]):
            lowered = jax.jit(
                _gradients_of(self) if self.backward else _benchmark_attention_kernel(self)
            ).lower(*args)
        return LoweredProgram(lowered, topology.one_chip, 1, {})


def attention_programs() -> list[tuple[str, AttentionKernel]]:
    """Returns names and programs of all implementations at all shapes."""
    model = presets.paligemma2_3b()
    text = model.text
    return [
        (
            f"{case}, {implementation}",
            AttentionKernel(
                implementation=implementation,
                rows=rows,
                length=length,
                backward=backward,
                num_heads=text.num_heads,
                num_kv_heads=text.num_kv_heads,
                head_dim=text.head_dim,
                cap=model.attn_softcap,
            ),
        )
        for (case, (rows, length, backward)), implementation in itertools.product(
            ATTENTION_SHAPES.items(), IMPLEMENTATIONS
        )
    ]


def _gradients_of(program: AttentionKernel) -> Any:
    kernel = _benchmark_attention_kernel(program)

    def loss(queries: Array, keys: Array, values: Array, mask: Array) -> Array:
        return jnp.sum(kernel(queries, keys, values, mask).astype(jnp.float32))

    return jax.grad(loss, argnums=(0, 1, 2))


def _benchmark_attention_kernel(program: AttentionKernel) -> _Kernel:
    library, _, name = program.implementation.partition(" ")
    name = name.removesuffix(", without cap")
    if library == "ours":
        return functools.partial(_our_attention_kernel, cap=program.cap)
    if library == "jax.nn":
        return lambda q, k, v, mask: jax.nn.dot_product_attention(
            q,
            k,
            v,
            mask=mask,
            implementation=name,  # type: ignore[arg-type]
        )
    tokamax: Any = importlib.import_module("tokamax")
    return lambda q, k, v, mask: tokamax.dot_product_attention(
        q, k, v, mask=mask, logits_soft_cap=program.cap, implementation=name
    )


def _our_attention_kernel(
    queries: Float[Array, "B N H h"],
    keys: Float[Array, "B S K h"],
    values: Float[Array, "B S K h"],
    mask: Bool[Array, "B 1 N S"],
    *,
    cap: float,
) -> Float[Array, "B N H h"]:
    rows, length, num_heads, head_dim = queries.shape
    groups = keys.shape[2]
    # Logits are divided by sqrt(h): the libraries do so themselves.
    scaled = queries * head_dim**-0.5
    scaled = scaled.reshape(rows, length, groups, num_heads // groups, head_dim)
    return by_einsum(scaled, keys, values, mask[:, 0], cap).reshape(queries.shape)
