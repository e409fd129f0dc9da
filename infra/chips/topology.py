"""The chips that a plan knows, and how they are joined: TPUs in a torus, GPUs by a switch."""

import dataclasses
import math


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """One kind of chip.

    Attributes:
      hbm_bytes: memory that a program may take: what libtpu refuses to compile beyond, or what a
        GPU has.
      peak_flops: of bfloat16 matrix products, dense [FLOP/s].
      link_bytes: of one link in one direction [bytes/s]: two along each axis of a TPU's torus; of a
        GPU, all of its links to its neighbours together.
      clock_hz: of the cycles that the compiler estimates; 0 where none can be asked.
      megacore: whether its two cores are one device to JAX.
    """

    hbm_bytes: float
    peak_flops: float
    link_bytes: float
    clock_hz: float = 0.0
    megacore: bool = False

    @property
    def has_compiler(self) -> bool:
        """Whether a compiler that runs anywhere tells what a program takes of it."""
        return self.clock_hz > 0


GIB = 2**30

PEAK_FLOPS = {
    "v4": 275e12, "v5e": 197e12, "v5p": 459e12, "v6e": 918e12,
    "a100": 312e12, "h100": 989e12, "h200": 989e12,
}  # fmt: skip
"""Dense bfloat16 peak of a chip [FLOP/s]. Source: the makers' data sheets."""

# Sources: memory from libtpu 0.0.42's refusals; peak and links from the vendor's system pages. The
# clock of v6e is inferred: peak over that of v5e, at four times its multipliers.
CHIPS = {
    "v4": Chip(
        hbm_bytes=30.75 * GIB,
        peak_flops=PEAK_FLOPS["v4"],
        clock_hz=1.05e9,
        link_bytes=45e9,
        megacore=True,
    ),
    "v5e": Chip(
        hbm_bytes=15.75 * GIB, peak_flops=PEAK_FLOPS["v5e"], clock_hz=1.5e9, link_bytes=45e9
    ),
    "v6e": Chip(
        hbm_bytes=31.25 * GIB, peak_flops=PEAK_FLOPS["v6e"], clock_hz=1.75e9, link_bytes=90e9
    ),
    "a100": Chip(hbm_bytes=79.2 * GIB, peak_flops=PEAK_FLOPS["a100"], link_bytes=300e9),
    "h100": Chip(hbm_bytes=79.2 * GIB, peak_flops=PEAK_FLOPS["h100"], link_bytes=450e9),
    "h200": Chip(hbm_bytes=139.8 * GIB, peak_flops=PEAK_FLOPS["h200"], link_bytes=450e9),
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice: "v4:8x8x4" is 256 chips of v4 in a torus of three axes, "h100:8" is eight GPUs.

    Attributes:
      kind: of the chips.
      shape: of the torus [chips].
    """

    kind: str
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "Topology":
        """Returns the topology of that name.

        Raises:
          ValueError: if the chip is not known, or the shape no product of numbers.
        """
        kind, _, shape = text.partition(":")
        sides = tuple(int(side) if side.isdecimal() else 0 for side in shape.split("x"))
        if kind not in CHIPS or not all(sides):
            raise ValueError(
                f"topology must be one of {', '.join(CHIPS)}, a colon and sides joined by x, such "
                f"as v4:8x8x4, v5e:16x16 or h100:8; got {text!r}."
            )
        return cls(kind, sides)

    def __str__(self) -> str:
        return f"{self.kind}:{'x'.join(map(str, self.shape))}"

    @property
    def chip(self) -> Chip:
        """What each of them is."""
        return CHIPS[self.kind]

    @property
    def num_chips(self) -> int:
        """Chips of the slice."""
        return math.prod(self.shape)

    def group_bytes(self, chips: int) -> float:
        """Returns how fast one chip sends to a group of neighbours [bytes/s].

        A group lies along as few axes of the torus as hold it, and uses both directions of each.
        """
        held, axes = 1, 0
        for side in sorted(self.shape, reverse=True):
            if held >= chips:
                break
            held, axes = held * side, axes + 1
        return 2 * max(axes, 1) * self.chip.link_bytes
