"""Reads the cost of a compiled program from its HLO text; no chip is needed.

libtpu annotates every instruction with the number of cycles that it expects it to take. Their sum
over the program, with each loop counted as often as it runs, is the time that a chip computes.
(`cost_analysis` counts the body of a loop once, which for a scanned model is a tenth of the truth.)
Collectives carry no cycles: their time is their bytes divided by the bandwidth of their group.

XLA's GPU compiler estimates no cycles. There the time is a formula: each kernel takes as long as
its matrix products at the peak, or as its reads and writes at the memory's bandwidth, whichever is
longer. No kernel is faster, so this is a lower bound.

These are estimates. Equivalent programs differ by up to 12 %, because the compiler picks different
layouts for them; a difference below 2 % is a tie. Ratios between programs of one compiler are more
reliable than seconds.
"""

import collections
import dataclasses
import re
import typing

from infra.chips.hlo import TRAFFIC, Collective, Program
from infra.chips.topology import Chip, Topology

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


class Kernel(typing.NamedTuple):
    """A kernel's work in one run: FLOPs of its matrix products, bytes that it reads and writes."""

    flops: float
    num_bytes: float


@dataclasses.dataclass(frozen=True)
class ProgramCost:
    """Cost of one run of a program, for each chip.

    Attributes:
      cycles: cycles that the chip computes; 0 for a GPU.
      traffic: collective -> bytes of the whole arrays that it moves.
      kernels: kernel of a GPU -> how often it runs; empty for a TPU.
    """

    cycles: float
    traffic: dict[Collective, float]
    kernels: dict[Kernel, int] = dataclasses.field(default_factory=dict)

    def compute_s(self, topology: Topology) -> float:
        """Returns the time that a chip computes; of a GPU, a lower bound by formula [s]."""
        chip = topology.chip
        if not chip.is_gpu:
            return self.cycles / chip.clock_hz
        return sum(
            runs * max(kernel.flops / chip.peak_flops, kernel.num_bytes / chip.memory_bandwidth)
            for kernel, runs in self.kernels.items()
        )

    def interconnect_s(self, topology: Topology, *, hidden: bool = False) -> float:
        """Returns the time of the collectives, one after the other [s].

        Args:
          topology: the slice.
          hidden: whether to count those that overlap with computation, too.
        """
        return sum(
            TRAFFIC[kind.name]
            * size
            * (kind.group - 1)
            / kind.group
            / topology.group_bytes(kind.group)
            for kind, size in self.traffic.items()
            if hidden or not kind.hidden
        )

    @property
    def traffic_bytes(self) -> float:
        """Bytes that pass the links of one chip."""
        return sum(
            TRAFFIC[kind.name] * size * (kind.group - 1) / kind.group
            for kind, size in self.traffic.items()
        )

    @property
    def flops(self) -> float:
        """FLOPs of the matrix products of a GPU's kernels, with what is computed twice."""
        return sum(runs * kernel.flops for kernel, runs in self.kernels.items())

    @property
    def memory_bytes(self) -> float:
        """Bytes that a GPU's kernels read from its memory and write to it."""
        return sum(runs * kernel.num_bytes for kernel, runs in self.kernels.items())


def read_program_cost(hlo: str, topology: Topology, *, open_trips: int = 1) -> ProgramCost:
    """Returns the cost of a compiled program.

    Args:
      hlo: text of the program, as `Compiled.as_text()` gives it.
      topology: the chips that it was compiled for.
      open_trips: iterations assumed for a loop whose bound is known only at run time.

    Raises:
      ValueError: if no instruction has cycles, since the program was not compiled for a TPU.
    """
    cost = _Reader(Program(hlo, topology.num_chips, open_trips), topology.chip).cost_of_all()
    if not cost.cycles and not topology.chip.is_gpu:
        raise ValueError("program has no estimated cycles; only those compiled by libtpu do.")
    return cost


class _Reader:
    """Adds up the cost of a program's computations, each with all it calls."""

    def __init__(self, program: Program, chip: Chip) -> None:
        self._program, self._chip = program, chip
        self._costs: dict[str, ProgramCost] = {}

    def cost_of_all(self) -> ProgramCost:
        """Returns the cost of the whole program."""
        return self._cost(self._program.entry)

    def _cost(self, name: str) -> ProgramCost:
        if name not in self._costs:
            self._costs[name] = self._sum(name)
        return self._costs[name]

    def _sum(self, name: str) -> ProgramCost:
        """Returns the cost of a computation and all it calls, with loops unrolled."""
        # A loop counts as often as it runs: a model of 26 scanned layers is one body, 26 times.
        cycles, traffic = 0.0, collections.defaultdict[Collective, float](float)
        kernels = collections.Counter[Kernel]()
        for line in self._program.computations[name]:
            if match := _CYCLES.search(line.attributes):
                cycles += int(match[1])
            for callee, iterations in self._program.called(line, self._order):
                inner = self._cost(callee)
                cycles += iterations * inner.cycles
                for kind, size in inner.traffic.items():
                    traffic[kind] += iterations * size
                for kernel, runs in inner.kernels.items():
                    kernels[kernel] += iterations * runs
            if transfer := self._program.collective(line):
                kind, size = transfer
                traffic[kind] += size
            elif self._chip.is_gpu and (work := self._program.kernel(name, line)):
                kernels[Kernel(*work)] += 1
        return ProgramCost(cycles, dict(traffic), dict(kernels))

    def _order(self, name: str) -> float:
        """Returns a number by which the more expensive of two computations is the larger."""
        cost = self._cost(name)
        return cost.cycles + cost.flops + cost.memory_bytes
