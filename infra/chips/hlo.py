"""A compiled program's text (HLO), read: computations, loops and collectives."""

import dataclasses
import math
import re
import typing

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4}
_BYTES |= {"s64": 8, "u64": 8, "f64": 8}

TRAFFIC = {
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
class Instruction:
    """A line of a program.

    Attributes:
      name: name of its result.
      shape: type of its result.
      operation: what it does: fusion, while, all-gather, ...
      attributes: the rest of the line, operands included.
    """

    name: str
    shape: str
    operation: str
    attributes: str


class Program:
    """A program's text, split into computations: name -> its instructions.

    Args:
      hlo: text of the program, as `Compiled.as_text()` gives it.
      num_chips: number of chips in the slice, the group size of a collective that names no group.
      open_trips: iterations assumed for a loop whose bound is known only at run time.

    Attributes:
      entry: name of the computation that is run.
      computations: name -> the instructions of a computation.
    """

    def __init__(self, hlo: str, num_chips: int, open_trips: int) -> None:
        self._num_chips, self._open_trips = num_chips, open_trips
        self.computations: dict[str, list[Instruction]] = {}
        self.entry = ""
        lines: list[Instruction] = []
        # The text of a program, and how a line is cut (the cycles are libtpu's):
        #
        #   ENTRY %main.42 (p.0: bf16[8,16]) -> bf16[8,16] {
        #     %fusion.3 = bf16[8,16]{1,0} fusion(%p.0), calls=%f.3, ... "estimated_cycles":"4711"
        #      name       shape           operation     attributes: all the rest
        #   }
        for line in hlo.splitlines():
            if header := _COMPUTATION.match(line):
                lines = self.computations.setdefault(header[2], [])
                self.entry = header[2] if header[1] else self.entry
            elif match := _INSTRUCTION.match(line):
                lines.append(Instruction(*match.groups()))

    def collective(self, line: Instruction) -> tuple[Collective, float] | None:
        """Returns a collective and the bytes of its whole array; None for other instructions."""
        operation, attributes, shape = line.operation, line.attributes, line.shape
        if operation == "fusion" and "calls=%all-reduce-scatter" in attributes:
            # The compiler's other form of a reduce-scatter, used if rows do not fill whole tiles.
            inner = self.computations[computation_name("calls", attributes)]
            whole = next(line for line in inner if line.operation == "all-reduce")
            group = self._group_size(whole.attributes)
            return Collective("reduce-scatter", group, hidden=False), shape_bytes(whole.shape)
        collective = operation.removesuffix("-start")
        if operation == "async-start":
            # A GPU's form of a pair: the collective itself is in a computation of its own.
            inner = self.computations[computation_name("calls", attributes)]
            whole = next((line for line in inner if line.operation in TRAFFIC), None)
            if whole is None or (counted := self.collective(whole)) is None:
                return None
            return counted[0]._replace(hidden=True), counted[1]
        if collective not in TRAFFIC:
            return None
        group, size = self._group_size(attributes), shape_bytes(shape)
        # A collective that overlaps with computation comes as a pair, all-gather-start and -done;
        # only the start counts. The types that lines state, for an array of 64 and a group of 4:
        #
        #   all-gather             f32[64]             the result is the whole
        #   all-gather-start       (f32[16], f32[64])  shard and whole: 5/4 of it
        #   reduce-scatter         f32[16]             the result is a shard
        #   reduce-scatter-start   (f32[64], f32[16])  whole and shard
        if collective == "reduce-scatter" and operation == collective:
            size *= group  # Its type is the shard of one chip.
        elif operation in ("all-gather-start", "reduce-scatter-start"):
            size *= group / (group + 1)  # Its type is a pair: the shard and the whole array.
        elif operation == "collective-permute-start":
            size /= 2  # Its type is a pair, too: input and output, of the same size.
        is_hidden = operation != collective and '"is_sync":true' not in attributes
        return Collective(collective, group, hidden=is_hidden), size

    def called(
        self, line: Instruction, cost: typing.Callable[[str], tuple[float, float]]
    ) -> list[tuple[str, int]]:
        """Returns the computations that an instruction runs, and how often.

        Args:
          line: the instruction.
          cost: cost of a computation, by which the most expensive branch is chosen.
        """
        operation, attributes = line.operation, line.attributes
        if operation == "while":
            return [(computation_name("body", attributes), self._loop_iterations(attributes))]
        if operation == "call":
            return [(computation_name("to_apply", attributes), 1)]
        if operation == "conditional":
            branches = re.search(r"branch_computations=\{([^}]*)\}", attributes)
            names = branches[1].split(",") if branches else []
            if not branches:
                pair = re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", attributes)
                names = pair
            # The most expensive branch: a plan states what a step may take at most.
            names = [name.strip().lstrip("%") for name in names]
            return [(max(names, key=cost), 1)] if names else []
        return []

    def _loop_iterations(self, attributes: str) -> int:
        """Returns a loop's iterations: it counts from 0 to the constant in its condition."""
        if match := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', attributes):
            return int(match[1])
        # The condition of a scan over 26 layers has the line %constant.5 = s32[] constant(26).
        bounds = [
            int(line.attributes.partition(")")[0])
            for line in self.computations[computation_name("condition", attributes)]
            if line.operation == "constant" and line.shape.startswith("s32[]")
        ]
        return max(bounds) if bounds else self._open_trips

    def _group_size(self, attributes: str) -> int:
        """Returns a collective's group size, from one of the forms in which groups are written."""
        #   [groups,chips]<=...      {{0,1},{2,3}}      mesh['axis_0'=4,'axis_1'=2] {'axis_1'}
        if match := re.search(r"replica_groups=\[\d+,(\d+)\]", attributes):
            return int(match[1])
        if match := re.search(r"replica_groups=\{\{([\d,]+)\}", attributes):
            return len(match[1].split(","))
        if match := re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", attributes):
            sides = {name: int(side) for name, side in re.findall(r"'(\w+)'=(\d+)", match[1])}
            named = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", match[2])
            return math.prod(int(part) if part else sides[name] for name, part in named)
        return self._num_chips


def computation_name(attribute: str, attributes: str) -> str:
    """Returns the name of the computation that an attribute states."""
    match = re.search(rf"{attribute}=%?([\w.\-]+)", attributes)
    assert match, f"an HLO instruction without {attribute}: {attributes[:200]}"
    return match[1]


def shape_bytes(shape: str) -> float:
    """Returns the size of an array, or of all arrays of a tuple."""
    # "(bf16[8,16]{1,0}, f32[])" -> 8 * 16 * 2 + 4 bytes; a scalar has no sides, and one element.
    return sum(
        _BYTES.get(dtype, 0) * math.prod(int(side) for side in filter(None, sides.split(",")))
        for dtype, sides in _ARRAY.findall(shape)
    )
