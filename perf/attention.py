"""Our attention against that of libraries, forward and with its derivative.

    python -m perf.attention                        # on this machine
    python -m perf.attention --topology v4:2x2x1    # compiled for a TPU's chips; needs libtpu

Sizes are those of the demo's decoder and of PaliGemma-2 3B's (8 heads of 256, 4 key heads). All use
the same prefix-LM mask and Gemma's soft-cap on logits, except `jax.nn.dot_product_attention`, which
has no soft-cap and is compared with ours without one. Splash attention is JAX's Pallas kernel for
TPUs; here it is interpreted, which shows its differences but not its time. Rows of tokamax need
that package, which nothing else does. A difference is the largest over outputs and gradients.
"""

import argparse
import functools
import importlib
import importlib.util
import time
import typing
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from absl import flags
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float

from infra.chips.compiled import read
from infra.chips.topology import Topology
from model.attention import attention
from model.train.ahead import topology_mesh
from perf.timing import table, take_turns

SIZES = {"demo": (8, 320, 2, 2, 16), "3B": (1, 384, 4, 2, 256)}
"""Name -> batch, length, key heads, query heads of each key head, channels."""
LENGTHS = 144, 384
"""Lengths of the 3B's rows at 16 and 256 soft tokens, with 128 tokens of text."""
ROWS_OF_A_CHIP = 32
"""Rows of each chip in the paper's batch of 8192 on 256 chips."""
CAP = 50.0
"""Gemma-2's soft-cap of attention logits."""
_LANES = 128
_MIB = 2**20


class Attend(typing.Protocol):
    """Signature of `model.attention.attention` and of its rivals."""

    def __call__(
        self, queries: Array, keys: Array, values: Array, mask: Array, cap: float
    ) -> Array: ...


def of_jax(queries: Array, keys: Array, values: Array, mask: Array, cap: float) -> Array:
    """Computes `attention` with JAX's own function.

    Raises:
      ValueError: if there is a soft-cap.
    """
    if cap:
        raise ValueError(f"cap must be 0 for jax.nn, got {cap}.")
    flat = queries.reshape(*queries.shape[:2], -1, queries.shape[-1])
    out = jax.nn.dot_product_attention(flat, keys, values, mask=mask[:, None], scale=1.0)
    return out.reshape(queries.shape)


def of_tokamax(name: str) -> Attend:
    """Returns `attention` in one of tokamax's implementations: xla or xla_chunked."""
    tokamax: typing.Any = importlib.import_module("tokamax")
    flags.FLAGS.mark_as_parsed()  # Or it would parse this program's arguments as its own flags.

    def attend(queries: Array, keys: Array, values: Array, mask: Array, cap: float) -> Array:
        flat = queries.reshape(*queries.shape[:2], -1, queries.shape[-1])
        more = {"scale": 1.0, "logits_soft_cap": cap or None, "implementation": name}
        out = tokamax.dot_product_attention(flat, keys, values, mask=mask[:, None], **more)
        return out.reshape(queries.shape)

    return attend


def of_splash(
    queries: Float[Array, "B N K G h"],
    keys: Float[Array, "B N K h"],
    values: Float[Array, "B N K h"],
    mask: Bool[Array, "B N N"],
    cap: float,
    *,
    interpret: bool = False,
) -> Float[Array, "B N K G h"]:
    """Computes `attention` with JAX's Pallas kernel, over rows padded to whole tiles.

    Prefixes differ between examples, so the mask is an array, not one of the kernel's mask types.
    """
    batch, length, kv_heads, groups, channels = queries.shape
    more = -length % _LANES
    whole = length + more
    q = queries.reshape(batch, length, kv_heads * groups, channels)
    padded = [jnp.pad(x, ((0, 0), (0, more), (0, 0), (0, 0))) for x in (q, keys, values)]
    # A padded row attends to one key: a softmax over none would be NaN, and so would its gradient.
    seen = jnp.pad(mask, ((0, 0), (0, more), (0, more))).at[:, length:, 0].set(True)
    names = [
        "block_q",
        "block_kv",
        "block_kv_compute",
        "block_q_dkv",
        "block_kv_dkv",
        "block_kv_dkv_compute",
        "block_q_dq",
        "block_kv_dq",
    ]
    sizes: typing.Any = dict.fromkeys(names, whole)

    def one(q: Array, k: Array, v: Array, seen: Array) -> Array:
        kernel: typing.Any = splash.make_splash_mha(
            jnp.broadcast_to(seen, (kv_heads * groups, whole, whole)),
            block_sizes=splash.BlockSizes(**sizes),
            head_shards=1,
            q_seq_shards=1,
            attn_logits_soft_cap=cap or None,
            interpret=interpret,
        )
        for part in ("fwd_mask_info", "dq_mask_info", "dkv_mask_info"):
            # Under `jit` this flag comes back as an array, which `__call__` then cannot read.
            setattr(kernel, part, getattr(kernel, part)._replace(is_dynamic_mask=True))
        return kernel(q, k, v)

    q, k, v = (jnp.swapaxes(x, 1, 2) for x in padded)
    out = jax.vmap(one)(q, k, v, seen)
    return jnp.swapaxes(out, 1, 2)[:, :length].reshape(queries.shape)


def _has_tokamax() -> bool:
    return importlib.util.find_spec("tokamax") is not None


def prefix_mask(batch: int, length: int) -> Bool[Array, "B N N"]:
    """Returns the mask of rows whose first two thirds are a prefix."""
    places = jnp.arange(length)
    seen = (places[None] < 2 * length // 3) | (places[None] <= places[:, None])
    return jnp.broadcast_to(seen, (batch, length, length))


def measure(name: str, rounds: int) -> list[list[str]]:
    """Returns the rows of a model's sizes, measured on this machine."""
    batch, length, kv_heads, groups, channels = SIZES[name]
    drawn = jax.random.split(jax.random.key(0), 4)
    q = jax.random.normal(drawn[0], (batch, length, kv_heads, groups, channels)) / channels**0.5
    k, v = (jax.random.normal(key, (batch, length, kv_heads, channels)) for key in drawn[1:3])
    weight = jax.random.normal(drawn[3], q.shape)
    mask = prefix_mask(batch, length)
    rivals: dict[str, tuple[Attend, float]] = {"ours": (attention, CAP)}
    rivals |= {"ours, no cap": (attention, 0.0), "jax.nn, no cap": (of_jax, 0.0)}
    if _has_tokamax():
        rivals |= {f"tokamax {one}": (of_tokamax(one), CAP) for one in ("xla", "xla_chunked")}
    interpreted = functools.partial(of_splash, interpret=True)

    def programs(attend: Attend, cap: float) -> list[Callable[[], typing.Any]]:
        def weighed(q: Array, k: Array, v: Array) -> Array:
            return jnp.sum(attend(q, k, v, mask, cap) * weight)

        forward = jax.jit(lambda q, k, v: attend(q, k, v, mask, cap))
        both = jax.jit(jax.value_and_grad(weighed, (0, 1, 2)))
        return [lambda: forward(q, k, v), lambda: both(q, k, v)]

    all_programs = {what: programs(*rival) for what, rival in rivals.items()}
    in_turns = {
        f"{what} {part}": one
        for what, pair in all_programs.items()
        for part, one in enumerate(pair)
    }
    times = take_turns(in_turns, rounds)
    rows = []
    for what, (attend, cap) in {**rivals, "splash": (interpreted, CAP)}.items():
        same = "ours" if cap else "ours, no cap"
        row = [name, what]
        for part in (0, 1):
            if what == "splash":
                row += ["", ""]
            else:
                wall, ours = times[f"{what} {part}"].wall, times[f"{same} {part}"].wall
                row += [f"{1000 * wall:.1f}", f"{wall / ours:.2f}"]
        outcomes = [
            [one() for one in found] for found in (programs(attend, cap), all_programs[same])
        ]
        pairs = zip(*map(jax.tree.leaves, outcomes), strict=True)
        differs = max(float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b))) for a, b in pairs)
        rows.append([*row, "" if what == same else f"{differs:.1e}"])
    return rows


def compiled(topology: Topology, length: int) -> list[list[str]]:
    """Returns the rows of the 3B's attention with its derivative, compiled for a slice.

    Args:
      topology: the slice; each chip has `ROWS_OF_A_CHIP` rows of the batch.
      length: length of a row [tokens].

    Raises:
      RuntimeError: as `topology_mesh`.
    """
    mesh = topology_mesh(topology)
    rows = NamedSharding(mesh, P(mesh.axis_names))
    batch, (_, _, kv_heads, groups, channels) = ROWS_OF_A_CHIP * topology.num_chips, SIZES["3B"]

    def given(*shape: int, dtype: typing.Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch, length, *shape), dtype, sharding=rows)

    q, k = given(kv_heads, groups, channels), given(kv_heads, channels)
    args = (q, k, k, given(length, dtype=jnp.bool_), q)
    rivals: dict[str, Attend] = {"ours": attention, "splash": _on_each_chip(of_splash, mesh)}
    if _has_tokamax():
        rivals |= {f"tokamax {one}": of_tokamax(one) for one in ("xla", "xla_chunked")}
    found = []
    with jax.set_mesh(mesh):
        for what, attend in rivals.items():
            began = time.monotonic()
            program = jax.jit(functools.partial(_with_derivative, attend)).lower(*args).compile()
            took = time.monotonic() - began
            memory: typing.Any = program.memory_analysis()
            text = program.as_text() or ""
            spent = read(text, num_chips=topology.num_chips).compute_s(topology)
            row = [str(topology), str(length), what, f"{took:.0f}"]
            row += [f"{memory.temp_size_in_bytes / _MIB:.0f}", f"{1000 * spent:.2f}"]
            found.append([*row, str(text.count('custom_call_target="tpu_custom_call"'))])
    return found


def _on_each_chip(attend: Attend, mesh: Mesh) -> Attend:
    """Returns `attend` mapped over each chip's rows: the compiler cannot split a kernel itself."""

    def mapped(queries: Array, keys: Array, values: Array, mask: Array, cap: float) -> Array:
        rows = P(mesh.axis_names)
        one = functools.partial(attend, cap=cap)
        split = jax.shard_map(one, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
        return split(queries, keys, values, mask)

    return mapped


def _with_derivative(
    attend: Attend, queries: Array, keys: Array, values: Array, mask: Array, gradient: Array
) -> tuple[Array, ...]:
    out, back = jax.vjp(lambda q, k, v: attend(q, k, v, mask, CAP), queries, keys, values)
    return (out, *back(gradient))


_HEAD = [
    "model",
    "what",
    "forward [ms]",
    "of ours",
    "with derivative [ms]",
    "of ours",
    "differs by",
]
_COMPILED_HEAD = [
    "topology",
    "length",
    "what",
    "compiled [s]",
    "temporaries [MiB]",
    "outside kernels [ms]",
    "kernels",
]


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="counted runs of each")
    parser.add_argument("--topology", help="compile for the chips of this slice instead")
    args = parser.parse_args(words)
    if args.topology:
        slices = Topology.parse(args.topology)
        rows = [row for length in LENGTHS for row in compiled(slices, length)]
        print(table(_COMPILED_HEAD, rows))
    else:
        print(table(_HEAD, [row for name in SIZES for row in measure(name, args.rounds)]))


if __name__ == "__main__":
    main()
