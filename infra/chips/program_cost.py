"""Reads the cost of a compiled program from its HLO text; no chip is needed.

libtpu annotates every instruction with the number of cycles that it expects it to take. Their sum
over the program, with each loop counted as often as it runs, is the time that a chip computes.
(`cost_analysis` counts the body of a loop once, which for a scanned model is a tenth of the truth.)
Collectives carry no cycles: their time is their bytes divided by the bandwidth of their group.

XLA's GPU compiler estimates no cycles: of a GPU's program only the traffic is read.

These are estimates. Equivalent programs differ by up to 12 %, because the compiler picks different
layouts for them; a difference below 2 % is a tie. Ratios between programs of one compiler are more
reliable than seconds.
"""

import collections
import dataclasses
import re

from infra.chips.hlo import TRAFFIC, Collective, Program
from infra.chips.topology import Topology

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


@dataclasses.dataclass(frozen=True)
class ProgramCost:
    """Cost of one run of a program, for each chip.

    Attributes:
      cycles: cycles that the chip computes; 0 for a GPU.
      traffic: collective -> bytes of the whole arrays that it moves.
    """

    cycles: float
    traffic: dict[Collective, float]

    def compute_s(self, topology: Topology) -> float:
        """Returns the time that a TPU's chip computes [s]."""
        return self.cycles / topology.chip.clock_hz

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


def read_program_cost(hlo: str, topology: Topology, *, open_trips: int = 1) -> ProgramCost:
    """Returns the cost of a compiled program.

    Args:
      hlo: text of the program, as `Compiled.as_text()` gives it.
      topology: the chips that it was compiled for.
      open_trips: iterations assumed for a loop whose bound is known only at run time.

    Raises:
      ValueError: if no instruction has cycles, since the program was not compiled for a TPU.
    """
    cost = _Reader(Program(hlo, topology.num_chips, open_trips)).cost_of_all()
    if not cost.cycles and not topology.chip.is_gpu:
        raise ValueError("program has no estimated cycles; only those compiled by libtpu do.")
    return cost


class _Reader:
    """Adds up the cost of a program's computations, each with all it calls."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._costs: dict[str, ProgramCost] = {}

    def cost_of_all(self) -> ProgramCost:
        """Returns the cost of the whole program."""
        return self._computation_cost(self._program.entry)

    def _computation_cost(self, name: str) -> ProgramCost:
        if name not in self._costs:
            self._costs[name] = self._sum_instruction_costs(name)
        return self._costs[name]

    def _sum_instruction_costs(self, name: str) -> ProgramCost:
        """Returns the cost of a computation and all it calls, with loops unrolled."""
        # A loop counts as often as it runs: a model of 26 scanned layers is one body, 26 times.
        cycles, traffic = 0.0, collections.defaultdict[Collective, float](float)
        for line in self._program.computations[name]:
            if match := _CYCLES.search(line.attributes):
                cycles += int(match[1])
            for callee, iterations in self._program.called(line, self._computation_cost_key):
                inner = self._computation_cost(callee)
                cycles += iterations * inner.cycles
                for kind, size in inner.traffic.items():
                    traffic[kind] += iterations * size
            if transfer := self._program.collective(line):
                kind, size = transfer
                traffic[kind] += size
        return ProgramCost(cycles, dict(traffic))

    def _computation_cost_key(self, name: str) -> tuple[float, float]:
        """Returns numbers by which the more expensive of two computations is the larger."""
        cost = self._computation_cost(name)
        return cost.cycles, cost.traffic_bytes
