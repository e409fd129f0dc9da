"""Reads the cost of a compiled TPU program from its HLO text; no chip is needed.

libtpu annotates every instruction with the number of cycles that it expects it to take. Their sum
over the program, with each loop counted as often as it runs, is the time that a chip computes.
(`cost_analysis` counts the body of a loop once, which for a scanned model is a tenth of the truth.)
Collectives carry no cycles: their time is their bytes divided by the bandwidth of their group.

These are estimates. Equivalent programs differ by up to 12 %, because the compiler picks different
layouts for them; a difference below 2 % is a tie. Ratios between programs of one compiler are more
reliable than seconds.
"""

import collections
import dataclasses
import re
import typing

from infra.chips.topology import Topology

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%[\w.\-]+ = (.*?) ([a-z][\w\-]*)\((.*)$")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4}
_TRAFFIC = {
    "all-gather": 1,
    "reduce-scatter": 1,
    "all-reduce": 2,
    "all-to-all": 1,
    "collective-permute": 1,
}
"""Collective -> how often each byte of the whole array passes a chip's links."""


class Collective(typing.NamedTuple):
    """One kind of traffic between chips: collectives of one type, group size and overlap.

    Attributes:
      name: the operation: all-gather, reduce-scatter, all-reduce, ...
      group: number of chips that take part in each collective.
      hidden: whether the chip computes during the transfer.
    """

    name: str
    group: int
    hidden: bool


@dataclasses.dataclass(frozen=True)
class ProgramCost:
    """Cost of one run of a program, for each chip.

    Attributes:
      cycles: cycles that the chip computes.
      traffic: collective -> bytes of the whole arrays that it moves.
    """

    cycles: float
    traffic: dict[Collective, float]

    def compute_s(self, topology: Topology) -> float:
        """Returns the time that a chip computes [s]."""
        return self.cycles / topology.chip.clock_hz

    def interconnect_s(self, topology: Topology, *, hidden: bool = False) -> float:
        """Returns the time of the collectives, one after the other [s].

        Args:
          topology: the slice.
          hidden: whether to count those that overlap with computation, too.
        """
        return sum(
            _TRAFFIC[kind.name]
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
            _TRAFFIC[kind.name] * size * (kind.group - 1) / kind.group
            for kind, size in self.traffic.items()
        )


def read_program_cost(hlo: str, *, num_chips: int, open_trips: int = 1) -> ProgramCost:
    """Returns the cost of a compiled program.

    Args:
      hlo: text of the program, as `Compiled.as_text()` gives it.
      num_chips: number of chips in the slice, the group size of a collective that names no group.
      open_trips: iterations assumed for a loop whose bound is known only at run time.

    Raises:
      ValueError: if no instruction has cycles, since the program was not compiled for a TPU.
    """
    program = _Program(hlo, num_chips, open_trips)
    cycles, traffic = program.cost(program.entry)
    if not cycles:
        raise ValueError("program has no estimated cycles; only those compiled by libtpu do.")
    return ProgramCost(cycles, dict(traffic))


class _Program:
    """A program's text, split into computations: name -> [(type, operation, attributes), ...]."""

    def __init__(self, hlo: str, num_chips: int, open_trips: int) -> None:
        self._num_chips, self._open_trips = num_chips, open_trips
        self._computations: dict[str, list[tuple[str, str, str]]] = {}
        self.entry = ""
        lines: list[tuple[str, str, str]] = []
        # The text of a program, and how a line is cut (the cycles are libtpu's):
        #
        #   ENTRY %main.42 (p.0: bf16[8,16]) -> bf16[8,16] {
        #     %fusion.3 = bf16[8,16]{1,0} fusion(%p.0), calls=%f.3, ... "estimated_cycles":"4711"
        #                 shape           operation     attributes: all the rest
        #   }
        for line in hlo.splitlines():
            if header := _COMPUTATION.match(line):
                lines = self._computations.setdefault(header[2], [])
                self.entry = header[2] if header[1] else self.entry
            elif instruction := _INSTRUCTION.match(line):
                lines.append((instruction[1], instruction[2], instruction[3]))

    def cost(self, name: str) -> tuple[float, dict[Collective, float]]:
        """Returns cycles and traffic of a computation and all it calls, with loops unrolled."""
        # A loop counts as often as it runs: a model of 26 scanned layers is one body, 26 times.
        cycles, traffic = 0.0, collections.defaultdict[Collective, float](float)
        for shape, operation, attributes in self._computations[name]:
            if match := _CYCLES.search(attributes):
                cycles += int(match[1])
            for callee, iterations in self._called_computations(operation, attributes):
                inner, transfer = self.cost(callee)
                cycles += iterations * inner
                for kind, size in transfer.items():
                    traffic[kind] += iterations * size
            if transfer := self._collective_bytes(shape, operation, attributes):
                kind, size = transfer
                traffic[kind] += size
        return cycles, traffic

    def _collective_bytes(
        self, shape: str, operation: str, attributes: str
    ) -> tuple[Collective, float] | None:
        """Returns a collective and the bytes of its whole array; None for other instructions."""
        if operation == "fusion" and "calls=%all-reduce-scatter" in attributes:
            # The compiler's other form of a reduce-scatter, used if rows do not fill whole tiles.
            inner = self._computations[_computation_name("calls", attributes)]
            shape, _, attributes = next(line for line in inner if line[1] == "all-reduce")
            group = self._group_size(attributes)
            return Collective("reduce-scatter", group, hidden=False), _shape_bytes(shape)
        collective = operation.removesuffix("-start")
        if collective not in _TRAFFIC:
            return None
        group, size = self._group_size(attributes), _shape_bytes(shape)
        # A collective that overlaps with computation comes as a pair, all-gather-start and -done;
        # only the start counts. The types that lines state, for an array of 64 and a group of 4:
        #
        #   all-gather           f32[64]             the result is the whole
        #   all-gather-start     (f32[16], f32[64])  shard and whole: 5/4 of it
        #   reduce-scatter       f32[16]             the result is a shard
        if collective == "reduce-scatter":
            size *= group  # Its type is the shard of one chip.
        elif operation == "all-gather-start":
            size *= group / (group + 1)  # Its type is a pair: the shard and the gathered array.
        elif operation == "collective-permute-start":
            size /= 2  # Its type is a pair, too: input and output, of the same size.
        return Collective(collective, group, hidden=collective != operation), size

    def _called_computations(self, operation: str, attributes: str) -> list[tuple[str, int]]:
        if operation == "while":
            condition = _computation_name("condition", attributes)
            body = _computation_name("body", attributes)
            return [(body, self._loop_iterations(condition))]
        if operation == "call":
            return [(_computation_name("to_apply", attributes), 1)]
        if operation == "conditional":
            branches = re.search(r"branch_computations=\{([^}]*)\}", attributes)
            names = branches[1].split(",") if branches else []
            # The most expensive branch: a plan states what a step may take at most.
            names = [name.strip().lstrip("%") for name in names]
            return [(max(names, key=lambda name: self.cost(name)[0]), 1)] if names else []
        return []

    def _loop_iterations(self, condition: str) -> int:
        """Returns a loop's iterations: it counts from 0 to the constant in its condition."""
        # The condition of a scan over 26 layers has the line %constant.5 = s32[] constant(26).
        bounds = [
            int(attributes.partition(")")[0])
            for shape, operation, attributes in self._computations[condition]
            if operation == "constant" and shape.startswith("s32[]")
        ]
        return max(bounds) if bounds else self._open_trips

    def _group_size(self, attributes: str) -> int:
        """Returns a collective's group size, from `[groups,chips]<=...` or `{{0,1},...}`."""
        if match := re.search(r"replica_groups=\[\d+,(\d+)\]", attributes):
            return int(match[1])
        if match := re.search(r"replica_groups=\{\{([\d,]+)\}", attributes):
            return len(match[1].split(","))
        return self._num_chips


def _computation_name(attribute: str, attributes: str) -> str:
    match = re.search(rf"{attribute}=%?([\w.\-]+)", attributes)
    assert match, f"an HLO instruction without {attribute}: {attributes[:200]}"
    return match[1]


def _shape_bytes(shape: str) -> float:
    """Returns the size of an array, or of all arrays of a tuple."""
    size = 0.0
    # "(bf16[8,16]{1,0}, f32[])" -> 8 * 16 * 2 + 4 bytes; a scalar has no sides, and one element.
    for dtype, sides in _ARRAY.findall(shape):
        count = 1
        for side in filter(None, sides.split(",")):
            count *= int(side)
        size += _BYTES.get(dtype, 0) * count
    return size
