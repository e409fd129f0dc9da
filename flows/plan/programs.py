"""Estimates memory and time of a training step on chips that this machine does not have.

For a TPU slice the step's program is compiled, and the outcome kept, so that each is compiled only
once. A GPU's compiler needs a GPU, so for GPUs a formula gives the estimate instead.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import time
from pathlib import Path

from infra.chips.topology import Topology
from infra.store.stored_folder import open_backend
from model.config import ModelConfig
from model.train.config import TrainConfig


class CompilerMissingError(Exception):
    """The library that compiles for TPUs is not installed."""


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
    model: ModelConfig,
    train: TrainConfig,
    topology: Topology,
    tokens: int,
    cache: Path,
) -> UpdateEstimate:
    """Returns memory and time of one update of a training, on each chip of a slice.

    Args:
      model: config of the model to train.
      train: the training recipe.
      topology: the slice.
      tokens: slots for soft tokens, per image.
      cache: folder of earlier outcomes, by digest of the program.

    Raises:
      CompilerMissingError: where libtpu is not installed.
    """
    try:
        version = importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        raise CompilerMissingError(
            "libtpu is not installed: memory and time are not known; pip install '.[tpu]'"
        ) from None
    from model.train.slice_programs import ProgramTooLargeError, SliceProgram, lower_for_slice

    # Lowering is quick, compiling is not: so an outcome is kept under the digest of the
    # lowered program, and whatever does not change the program does not compile again.
    lowered = lower_for_slice(model, train, topology, tokens)
    program = "\n".join([version, str(topology), str(model.loss_chunk), lowered.text])
    outcome_file = cache / f"{hashlib.sha256(program.encode()).hexdigest()}.json"
    if outcome_file.is_file():
        return UpdateEstimate(**json.loads(outcome_file.read_text()))
    started = time.monotonic()
    try:
        ahead: SliceProgram = lowered.compile()
    # Too large is an answer, too: the compiler says how much memory it would need.
    except ProgramTooLargeError as error:
        took = time.monotonic() - started
        compiled = UpdateEstimate(
            memory_bytes=error.needed_bytes,
            compute_s=None,
            interconnect_s=None,
            traffic_bytes=None,
            compile_s=took,
        )
    else:
        compiled = UpdateEstimate(
            memory_bytes=ahead.peak_bytes,
            compute_s=ahead.cost.compute_s(topology),
            interconnect_s=ahead.cost.interconnect_s(topology, hidden=True),
            traffic_bytes=ahead.cost.traffic_bytes,
            compile_s=time.monotonic() - started,
        )
    open_backend(str(cache)).put(
        outcome_file.name, json.dumps(dataclasses.asdict(compiled)).encode()
    )
    return compiled


def by_formula(
    model: ModelConfig,
    train: TrainConfig,
    topology: Topology,
    tokens: int,
    *,
    flops: float,
    mfu: float,
) -> UpdateEstimate:
    """Returns memory and time of one update of a training on each chip, by arithmetic alone.

    Args:
      model: config of the model to train.
      train: the training recipe.
      topology: the chips.
      tokens: slots for soft tokens, per image.
      flops: FLOPs of the update, over all chips.
      mfu: share of the chips' peak FLOP/s that computing is assumed to reach.
    """
    from model.train.memory import gathered_bytes, step_bytes

    chips = topology.num_chips
    # Weights are gathered for the forward and for the backward pass; gradients are scattered once.
    traffic = gathered_bytes(model) if chips > 1 else 0.0
    return UpdateEstimate(
        memory_bytes=step_bytes(model, train, tokens, devices=chips),
        compute_s=flops / chips / topology.chip.peak_flops / mfu,
        interconnect_s=traffic / topology.chip.link_bytes,
        traffic_bytes=traffic,
        compile_s=0.0,
        by_formula=True,
    )
