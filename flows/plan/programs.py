"""Estimates memory and time of programs on chips that this machine does not have.

A program is compiled for the chips, and the outcome kept, so that each is compiled only once.
Without a compiler, a formula gives the estimate instead.
"""

import dataclasses
from typing import TYPE_CHECKING

from infra.chips.topology import Topology
from model.config import ModelConfig
from model.train.config import TrainConfig

if TYPE_CHECKING:  # It imports JAX's lowering, which a plan by formula does not need.
    from model.chips.compiler import Compiler
    from model.chips.programs import TrainProgram

COMPILED_MARGIN = 0.1
"""Memory of a GPU that a run may take above its compiler's word [fraction of that].

On an H200 updates took 1 to 9 % more than was compiled for an H100 without one, the most those that
keep the least: 82.5 GiB in place of 75.5 for 256 rows with `remat: full` (`docs/measured.md`). The
allocator's gaps between arrays are no part of what a compiler counts.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateEstimate:
    """Estimates for one update, per chip.

    Attributes:
      memory_bytes: peak memory; for a program that does not fit, the memory that it asks for.
      compute_s: estimated time of computing; None if the program does not fit [s].
      interconnect_s: estimated time of all collectives, one after the other, including those that
        overlap computing; None if the program does not fit [s].
      traffic_bytes: bytes that pass a chip's links; None if the program does not fit.
      compile_s: time that compiling took [s].
      by_formula: whether the numbers come from the formula instead of a compiler.
    """

    memory_bytes: float
    compute_s: float | None
    interconnect_s: float | None
    traffic_bytes: float | None
    compile_s: float
    by_formula: bool = False


def compile_program(
    program: "TrainProgram",
    topology: Topology,
    compiler: "Compiler",
    *,
    flops: float,
    mfu: float,
) -> UpdateEstimate:
    """Returns memory and time of one update of a training, on each chip of a slice.

    Args:
      program: the update.
      topology: the slice.
      compiler: compiles it, unless it did earlier.
      flops: FLOPs of the update, over all chips.
      mfu: share of their peak FLOP/s that GPUs are assumed to reach; a TPU's time is the
        compiler's.

    Raises:
      CompilerMissingError: where there is no compiler for these chips.
      CompilationError: if it refuses the program for another reason than its size.
    """
    outcome = compiler.outcome(program, topology)
    # A GPU's compiler estimates no time.
    compute_s = _compute_s(topology, flops, mfu) if topology.chip.is_gpu else outcome.compute_s
    return UpdateEstimate(
        memory_bytes=outcome.memory_bytes,
        compute_s=compute_s,
        interconnect_s=outcome.interconnect_s,
        traffic_bytes=outcome.traffic_bytes,
        compile_s=outcome.compile_s,
    )


def by_formula(
    model: ModelConfig,
    train: TrainConfig,
    topology: Topology,
    tokens: int,
    *,
    num_images: int = 1,
    flops: float,
    mfu: float,
) -> UpdateEstimate:
    """Returns memory and time of one update of a training on each chip, by arithmetic alone.

    Args:
      model: config of the model to train.
      train: the training recipe.
      topology: the chips.
      tokens: slots for soft tokens, per image.
      num_images: images per example.
      flops: FLOPs of the update, over all chips.
      mfu: share of the chips' peak FLOP/s that computing is assumed to reach.
    """
    from model.train.memory import step_bytes

    chips = topology.num_chips
    traffic = update_traffic(model, train, chips)
    return UpdateEstimate(
        memory_bytes=step_bytes(model, train, tokens, num_images=num_images, devices=chips),
        compute_s=_compute_s(topology, flops, mfu),
        interconnect_s=traffic / topology.group_bytes(chips),
        traffic_bytes=traffic,
        compile_s=0.0,
        by_formula=True,
    )


def update_traffic(model: ModelConfig, train: TrainConfig, chips: int) -> float:
    """Returns the bytes that pass a chip's links in one update, by formula; 0 for one chip."""
    from model.train.memory import gathered_bytes, num_params

    # In each part of a batch that is computed by itself, weights are gathered for the forward and
    # for the backward pass, and gradients are scattered.
    if train.exact_shards is not None:  # Gradients of the whole model, to one chip after the other.
        return 4.0 * num_params(model) * (chips - 1).bit_length()
    passes = train.num_passes(max(1, train.batch_size // chips))
    return passes * gathered_bytes(model) if chips > 1 else 0.0


def _compute_s(topology: Topology, flops: float, mfu: float) -> float:
    return flops / topology.num_chips / topology.chip.peak_flops / mfu
