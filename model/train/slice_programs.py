"""Training steps compiled for TPU slices that this machine does not have.

libtpu compiles for a slice without its hardware. Whether a step fits the memory of a chip, and what
it costs, is thus known before a slice is rented.
"""

import dataclasses
import os
import re
import typing

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from infra.chips.program_cost import ProgramCost, read_program_cost
from infra.chips.topology import GIB, Topology
from model import vlm
from model.config import ModelConfig
from model.sharding import make_mesh
from model.train.config import TrainConfig
from model.train.step import StepPrograms, abstract_inputs, abstract_state


class ProgramTooLargeError(Exception):
    """A program asks for more memory than a chip has.

    Attributes:
      needed_bytes: memory per chip that the program needs.
    """

    def __init__(self, needed_bytes: float) -> None:
        super().__init__(f"asks for {needed_bytes / GIB:.1f} GiB a chip")
        self.needed_bytes = needed_bytes


def parse_needed_bytes(error: str) -> float | None:
    """Returns the memory per chip that libtpu's error says a program needs; None if it names none.

    Far above the limit, libtpu names only the temporaries.
    """
    match = re.search(r"Used ([\d.]+)G of [\d.]+G hbm|HLO temporaries \(([\d.]+)G\)", error)
    return float(match[1] or match[2]) * GIB if match else None


class SliceProgram(typing.NamedTuple):
    """A step compiled for a slice.

    Attributes:
      state_bytes: size of parameters, moments and batch, on each chip.
      peak_bytes: the most memory in use at a time, on each chip.
      cost: cost of one update, on each chip.
    """

    state_bytes: float
    peak_bytes: float
    cost: ProgramCost


@dataclasses.dataclass(frozen=True)
class LoweredStep:
    """A step lowered for a slice, not yet compiled."""

    _lowered: jax.stages.Lowered
    _topology: Topology
    _num_chunks: int

    @property
    def text(self) -> str:
        """The program's text; equal computations have equal texts."""
        return self._lowered.as_text()

    def compile(self) -> SliceProgram:
        """Compiles the step and returns its memory and cost on each chip; takes minutes.

        Raises:
          ProgramTooLargeError: if it does not fit.
        """
        # A program that does not fit is an error of the compiler, which says how much it asked for.
        try:
            compiled = self._lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            if (num_bytes := parse_needed_bytes(str(error))) is not None:
                raise ProgramTooLargeError(num_bytes) from None
            raise
        memory: typing.Any = compiled.memory_analysis()
        # The loss loops over the chunks that have a target; the most is all of them.
        cost = read_program_cost(
            compiled.as_text() or "",
            num_chips=self._topology.num_chips,
            open_trips=self._num_chunks,
        )
        return SliceProgram(memory.argument_size_in_bytes, memory.peak_memory_in_bytes, cost)


def topology_mesh(topology: Topology, *, num_replicas: int = 1) -> Mesh:
    """Returns the mesh of a slice that this machine need not have.

    Raises:
      RuntimeError: if libtpu is not installed, or does not know the slice.
    """
    # Another process of this machine may hold libtpu's lock; nothing here touches a device.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    options = {"chip_config_name": "megacore"} if topology.chip.megacore else {}
    description = topologies.get_topology_desc(str(topology), "tpu", **options)
    return make_mesh(description.devices, num_replicas=num_replicas)


def lower_for_slice(
    model: ModelConfig, train: TrainConfig, topology: Topology, tokens: int, *, num_images: int = 1
) -> LoweredStep:
    """Returns one training update, lowered for a slice from shapes alone.

    Args:
      model: config of the model to train.
      train: the training recipe; the mesh has its `num_replicas`.
      topology: the slice.
      tokens: slots for soft tokens, per image.
      num_images: images per example.

    Raises:
      RuntimeError: as `topology_mesh`.
    """
    mesh = topology_mesh(topology, num_replicas=train.num_replicas)
    # Shapes from here on: no parameter is made, and no device is needed.
    batch, rates = abstract_inputs(model, train, mesh, num_images)
    args = abstract_state(model, train, mesh), batch, vlm.Slots(tokens, tokens), rates
    lowered = StepPrograms(model, train, mesh, (num_images,)).lower(args)
    return LoweredStep(
        lowered, topology, -(-train.text_len // min(model.loss_chunk, train.text_len))
    )
