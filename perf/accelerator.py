"""Times and MFU of train step, prefill and decoding of the 3B model at each budget.

    python -m perf.accelerator --batch-size 8 --budgets 16 64 256

Needs jax, flax, optax, orbax and grain only. MFU is the FLOPs by the paper's formulas (a train step
is three forward passes; recomputation in the backward pass does not count) over the time and the
peak of all devices. Training holds float32 parameters and moments: 16 bytes a parameter with the
gradient, 49 GB for 3B; prefill and decoding have bfloat16 parameters.
"""

import argparse
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from model import presets, vlm
from model.analysis.flops import Modality, prefill_flops, update_flops
from model.analysis.peak import peak_tflops
from model.config import ModelConfig
from model.connector.config import ConnectorConfig
from model.decode.generate import generate
from model.sharding import make_mesh, shard_batch, shard_tree
from model.train.config import TrainConfig
from model.train.step import Rates, StepPrograms, make_state
from perf.batches import prompts, train_batch
from perf.programs import exact_slots, prefill_program
from perf.timing import Timing, table, take_turns

SIZES = {"3b": presets.paligemma2_3b, "small": presets.small, "tiny": presets.tiny}


def measure(
    cfg: ModelConfig,
    at: Sequence[int],
    *,
    batch_size: int,
    text_len: int,
    rounds: int,
    what: Sequence[str] = ("train", "prefill", "decode"),
    num_tokens: int = 32,
) -> Iterator[list[str]]:
    """Yields the rows of the table, each as soon as it is measured.

    Args:
      cfg: the model.
      at: budgets to measure.
      batch_size: examples over all devices.
      text_len: length of the prompt, or of prompt and answer in training [tokens].
      rounds: counted runs of each program.
      what: parts to measure.
      num_tokens: tokens decoded, for the time of one.
    """
    peak = peak_tflops(jax.devices())
    modality = Modality(name="prompt", num_images=1, text_tokens=text_len)
    if "train" in what:
        yield from _train(cfg, at, batch_size, modality, rounds, peak)
    params = _params(cfg, jnp.bfloat16 if cfg.dtype == "bfloat16" else jnp.float32)
    prompt = _placed(cfg, batch_size, text_len)
    for budget in at:
        slots = exact_slots(cfg, budget)
        flops = batch_size * prefill_flops(cfg, budget, modality).total
        if "prefill" in what:
            program = prefill_program(cfg).lower(params, prompt, slots).compile()
            run = functools.partial(program, params, prompt, slots)
            yield _row("prefill", budget, take_turns({"": run}, rounds)[""], flops, peak)
        if "decode" in what:
            runs = {
                f"{count:05d}": functools.partial(
                    generate,
                    vlm.structure(cfg),
                    params,
                    prompt,
                    slots,
                    max_new_tokens=count,
                    stop=None,
                )
                for count in (1, num_tokens)
            }
            first, last = take_turns(runs, rounds).values()
            token = dataclasses.replace(
                last,
                wall=max(last.wall - first.wall, 0.0) / (num_tokens - 1),
                cpu=max(last.cpu - first.cpu, 0.0) / (num_tokens - 1),
            )
            yield _row("token", budget, token, None, peak)


def _train(
    cfg: ModelConfig,
    at: Sequence[int],
    batch_size: int,
    modality: Modality,
    rounds: int,
    peak: float | None,
) -> Iterator[list[str]]:
    train = TrainConfig(
        batch_size=batch_size, text_len=modality.text_tokens, budgets=tuple(at), peak_lr=1e-5
    )
    mesh = make_mesh()
    programs = StepPrograms(cfg, train, mesh)
    state = make_state(_params(cfg, jnp.float32), train, mesh)
    batch = train_batch(cfg, batch_size, modality.text_tokens)

    def step(budget: int) -> jax.Array:
        nonlocal state
        state, told = programs(state, batch, budget, Rates(learning=1e-5, decay=0.0))
        return told.loss

    for budget in at:
        timing = take_turns({"": functools.partial(step, budget)}, rounds)[""]
        flops = update_flops(cfg, budget, modality, batch_size)
        yield _row("train", budget, timing, flops, peak)
    # Freed at once: prefill and decoding need the memory.
    for leaf in jax.tree.leaves(state):
        leaf.delete()


def _params(cfg: ModelConfig, dtype: Any) -> vlm.Params:
    """Returns small random parameters on all devices; their values do not matter."""

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jax.jit(lambda: 0.02 * jax.random.normal(jax.random.key(0), leaf.shape, dtype))()

    return shard_tree(jax.tree.map(draw, vlm.abstract_params(cfg)), make_mesh())


def _placed(cfg: ModelConfig, batch_size: int, text_len: int) -> vlm.Prompt:
    given = prompts(cfg, batch_size, text_len)._asdict()
    placed = shard_batch({k: array for k, array in given.items() if array is not None}, make_mesh())
    return vlm.Prompt(**placed)


def _row(
    what: str, budget: int, timing: Timing, flops: float | None, peak: float | None
) -> list[str]:
    rate = None if flops is None else flops / timing.wall / 1e12
    return [
        what,
        str(budget),
        f"{1000 * timing.wall:.2f}",
        f"{timing.noise:.0%}",
        "-" if rate is None else f"{rate:.2f}",
        "-" if rate is None or peak is None else f"{rate / peak:.1%}",
    ]


HEADER = ["what", "budget", "ms", "noise", "TFLOP/s", "MFU"]


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table, and the device it holds for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=sorted(SIZES), default="3b")
    parser.add_argument("--connector", default="parcel")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--budgets", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--batch-size", type=int, default=8, help="over all devices")
    parser.add_argument("--text-len", type=int, default=128, help="[tokens]")
    parser.add_argument("--rounds", type=int, default=10, help="counted runs of each program")
    parser.add_argument("--tokens", type=int, default=32, help="decoded, for the time of one")
    parser.add_argument(
        "--what",
        nargs="+",
        default=["train", "prefill", "decode"],
        choices=("train", "prefill", "decode"),
    )
    args = parser.parse_args(words)
    connector = ConnectorConfig(kind=args.connector)
    cfg = dataclasses.replace(SIZES[args.size](connector), dtype=args.dtype)
    device = jax.devices()[0]
    print(
        f"{len(jax.devices())} x {device.device_kind}, {args.size}, {args.dtype}, "
        f"batch {args.batch_size}, text {args.text_len}, jax {jax.__version__}"
    )
    rows = []
    for row in measure(
        cfg,
        args.budgets,
        batch_size=args.batch_size,
        text_len=args.text_len,
        rounds=args.rounds,
        what=args.what,
        num_tokens=args.tokens,
    ):
        rows.append(row)
        print(" ".join(row), flush=True)  # Printed at once, in case the run is cut short.
    print(table(HEADER, rows))


if __name__ == "__main__":
    main()
