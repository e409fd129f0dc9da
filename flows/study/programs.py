"""A training's programs on chips that are not here.

For a TPU slice they are compiled, each once, ever. A GPU's compiler needs a GPU: there a formula
says what it can.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import time
from pathlib import Path

from infra.chips.topology import Topology
from infra.store.places import open_files
from model.config import ModelConfig
from model.train.config import TrainConfig


class NotHere(Exception):
    """What it takes to compile for a TPU is not installed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """What is said of one update, per chip.

    Attributes:
      memory_bytes: the most in use; of a program that does not fit, what it asks for.
      compute_s: the compiler's estimate of computing [s]; None where it does not fit.
      interconnect_s: of collectives, one after the other, hidden ones too [s].
      traffic_bytes: that pass a chip's links.
      compile_s: that compiling took [s].
      by_formula: whether no compiler was asked.
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
) -> Compiled:
    """Returns memory and time of one update of a training, on each chip of a slice.

    Args:
      model: that is trained.
      train: how.
      topology: the slice.
      tokens: slots for soft tokens, per image.
      cache: folder of what was compiled before, by program.

    Raises:
      NotHere: where libtpu is not installed.
    """
    try:
        version = importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        raise NotHere(
            "libtpu is not installed: memory and time are not known; pip install '.[tpu]'"
        ) from None
    from model.train.ahead import Ahead, TooLarge, lower_ahead

    lowered = lower_ahead(model, train, topology, tokens)
    program = "\n".join([version, str(topology), str(model.loss_chunk), lowered.text])
    known = cache / f"{hashlib.sha256(program.encode()).hexdigest()}.json"
    if known.is_file():
        return Compiled(**json.loads(known.read_text()))
    started = time.monotonic()
    try:
        ahead: Ahead = lowered.compile()
    except TooLarge as error:
        took = time.monotonic() - started
        made = Compiled(
            memory_bytes=error.asked_bytes,
            compute_s=None,
            interconnect_s=None,
            traffic_bytes=None,
            compile_s=took,
        )
    else:
        made = Compiled(
            memory_bytes=ahead.peak_bytes,
            compute_s=ahead.cost.compute_s(topology),
            interconnect_s=ahead.cost.interconnect_s(topology, hidden=True),
            traffic_bytes=ahead.cost.traffic_bytes,
            compile_s=time.monotonic() - started,
        )
    open_files(str(cache)).put(known.name, json.dumps(dataclasses.asdict(made)).encode())
    return made


def by_formula(
    model: ModelConfig,
    train: TrainConfig,
    topology: Topology,
    tokens: int,
    *,
    flops: float,
    mfu: float,
) -> Compiled:
    """Returns memory and time of one update of a training on each chip, by arithmetic alone.

    Args:
      model: that is trained.
      train: how.
      topology: the chips.
      tokens: slots for soft tokens, per image.
      flops: of the update, on all chips.
      mfu: share of the chips' peak that computing is taken to reach.
    """
    from model.train.memory import gathered_bytes, step_bytes

    chips = topology.num_chips
    # Weights are gathered for the forward and for the backward pass; gradients are scattered once.
    traffic = gathered_bytes(model) if chips > 1 else 0.0
    return Compiled(
        memory_bytes=step_bytes(model, train, tokens, devices=chips),
        compute_s=flops / chips / topology.chip.peak_flops / mfu,
        interconnect_s=traffic / topology.chip.link_bytes,
        traffic_bytes=traffic,
        compile_s=0.0,
        by_formula=True,
    )
