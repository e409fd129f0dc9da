"""Reads the cost of a compiled TPU program from its own text: no chip is needed, and none is used.

libtpu notes in every instruction how many cycles it expects it to take. Summed over the program,
with loops counted as often as they run, that is the time a chip computes. (`cost_analysis` counts
the body of a loop once, which for a scanned model is a tenth of the truth.) Collectives carry no
cycles: their bytes are divided by what the links of their group can send.

These are estimates. Rewrites that compute the same differ by up to 12 % for the layouts that the
compiler picks; below 2 % is a tie. Ratios on one compiler say more than seconds.
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
    "all-gather": 1, "reduce-scatter": 1, "all-reduce": 2, "all-to-all": 1, "collective-permute": 1,
}  # fmt: skip
"""Collective -> how often each byte of the whole array passes a chip's links."""


class Collective(typing.NamedTuple):
    """One kind of traffic between chips, as all loops together cause it.

    Attributes:
      name: all-gather, reduce-scatter, all-reduce, ...
      group: chips that take part in one.
      hidden: whether the chip computes meanwhile.
    """

    name: str
    group: int
    hidden: bool


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one run of a program asks of each chip.

    Attributes:
      cycles: that it computes.
      traffic: bytes of the whole arrays, by collective.
    """

    cycles: float
    traffic: dict[Collective, float]

    def compute_s(self, topology: Topology) -> float:
        """Returns how long a chip computes [s]."""
        return self.cycles / topology.chip.clock_hz

    def interconnect_s(self, topology: Topology, *, hidden: bool = False) -> float:
        """Returns how long the collectives take, one after the other [s].

        Args:
          topology: the slice.
          hidden: with those during which a chip computes.
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


def read(hlo: str, *, num_chips: int, open_trips: int = 1) -> Cost:
    """Returns the cost of a compiled program.

    Args:
      hlo: its text, as `Compiled.as_text()` gives it.
      num_chips: of the slice: the group of a collective that names none.
      open_trips: how often a loop runs whose bound is known only when it does.

    Raises:
      ValueError: if no instruction has cycles: it was not compiled for a TPU.
    """
    program = _Program(hlo, num_chips, open_trips)
    cycles, traffic = program.cost(program.entry)
    if not cycles:
        raise ValueError("program has no estimated cycles; only those compiled by libtpu do.")
    return Cost(cycles, dict(traffic))


class _Program:
    """The text, cut into computations: lines of (type, operation, the rest)."""

    def __init__(self, hlo: str, num_chips: int, open_trips: int) -> None:
        self._num_chips, self._open_trips = num_chips, open_trips
        self._computations: dict[str, list[tuple[str, str, str]]] = {}
        self.entry = ""
        lines: list[tuple[str, str, str]] = []
        for line in hlo.splitlines():
            if head := _COMPUTATION.match(line):
                lines = self._computations.setdefault(head[2], [])
                self.entry = head[2] if head[1] else self.entry
            elif found := _INSTRUCTION.match(line):
                lines.append((found[1], found[2], found[3]))

    def cost(self, name: str) -> tuple[float, dict[Collective, float]]:
        """Returns cycles and traffic of one computation and all it calls, loops unrolled."""
        cycles, traffic = 0.0, collections.defaultdict[Collective, float](float)
        for shape, operation, rest in self._computations[name]:
            if found := _CYCLES.search(rest):
                cycles += int(found[1])
            for called, times in self._calls(operation, rest):
                inner, moved = self.cost(called)
                cycles += times * inner
                for kind, size in moved.items():
                    traffic[kind] += times * size
            if moved := self._moved(shape, operation, rest):
                kind, size = moved
                traffic[kind] += size
        return cycles, traffic

    def _moved(self, shape: str, operation: str, rest: str) -> tuple[Collective, float] | None:
        """Returns an instruction's collective and the bytes of its whole array; None of others."""
        if operation == "fusion" and "calls=%all-reduce-scatter" in rest:
            # The compiler's other form of a reduce-scatter, for rows that fill no whole tiles.
            inner = self._computations[_name("calls", rest)]
            shape, _, rest = next(one for one in inner if one[1] == "all-reduce")
            return Collective("reduce-scatter", self._group(rest), hidden=False), _bytes(shape)
        plain = operation.removesuffix("-start")
        if plain not in _TRAFFIC:
            return None
        group, size = self._group(rest), _bytes(shape)
        if plain == "reduce-scatter":
            size *= group
        elif operation == "all-gather-start":
            size *= group / (group + 1)  # Its type is a pair: what goes in, and what comes out.
        elif operation == "collective-permute-start":
            size /= 2
        return Collective(plain, group, hidden=plain != operation), size

    def _calls(self, operation: str, rest: str) -> list[tuple[str, int]]:
        if operation == "while":
            condition, body = _name("condition", rest), _name("body", rest)
            return [(body, self._trips(condition))]
        if operation == "call":
            return [(_name("to_apply", rest), 1)]
        if operation == "conditional":
            branches = re.search(r"branch_computations=\{([^}]*)\}", rest)
            names = branches[1].split(",") if branches else []
            # The dearest one: a plan says what a step may take.
            names = [name.strip().lstrip("%") for name in names]
            return [(max(names, key=lambda name: self.cost(name)[0]), 1)] if names else []
        return []

    def _trips(self, condition: str) -> int:
        """Returns how often a loop runs: it counts from 0 to the constant it compares with."""
        bounds = [
            int(rest.partition(")")[0])
            for shape, operation, rest in self._computations[condition]
            if operation == "constant" and shape.startswith("s32[]")
        ]
        return max(bounds) if bounds else self._open_trips

    def _group(self, rest: str) -> int:
        """Returns how many chips a collective joins: `[groups,chips]<=...` or `{{0,1},...}`."""
        if found := re.search(r"replica_groups=\[\d+,(\d+)\]", rest):
            return int(found[1])
        if found := re.search(r"replica_groups=\{\{([\d,]+)\}", rest):
            return len(found[1].split(","))
        return self._num_chips


def _name(attribute: str, rest: str) -> str:
    found = re.search(rf"{attribute}=%?([\w.\-]+)", rest)
    assert found, f"an HLO instruction without {attribute}: {rest[:200]}"
    return found[1]


def _bytes(shape: str) -> float:
    """Returns the size of an array, or of all arrays of a tuple."""
    size = 0.0
    for dtype, sides in _ARRAY.findall(shape):
        count = 1
        for side in filter(None, sides.split(",")):
            count *= int(side)
        size += _BYTES.get(dtype, 0) * count
    return size
