"""The chips that a plan knows, and how they are joined: TPUs in a torus, GPUs by a switch."""

import dataclasses
import math

from infra.chips.gpu_target import GPU_DEVICES


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """One kind of chip.

    Attributes:
      hbm_bytes: memory that a program may use: the limit above which libtpu refuses to compile, or
        the memory of a GPU.
      peak_flops: peak of dense bfloat16 matrix products [FLOP/s].
      link_bytes: bandwidth in one direction [bytes/s]: of one link of a TPU, whose torus has two
        along each axis; of all links of a GPU together.
      clock_hz: clock of the cycles that a TPU's compiler estimates; 0 for a GPU, whose compiler
        estimates none.
      megacore: whether JAX sees its two cores as one device.
      memory_bandwidth: peak of reading and writing its memory [bytes/s].
      host_chips: most chips of one host.
      slice_host_chips: chips of each host of a slice that spans several.
      ray_type: Ray's name of the accelerator; "" for a GPU, which needs none.
    """

    hbm_bytes: float
    peak_flops: float
    link_bytes: float
    memory_bandwidth: float
    clock_hz: float = 0.0
    megacore: bool = False
    host_chips: int = 8
    slice_host_chips: int = 8
    ray_type: str = ""

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU; else it is a TPU."""
        return not self.clock_hz

    @property
    def program_bytes(self) -> float:
        """Memory that a program of a worker may use: all of a TPU's, `GPU_SHARE` of a GPU's."""
        return GPU_SHARE * self.hbm_bytes if self.is_gpu else self.hbm_bytes


GIB = 2**30

GPU_SHARE = 0.9
"""Part of a GPU's memory that its tasks share; the rest is for CUDA itself [fraction]."""

PEAK_FLOPS = {
    "v4": 275e12,
    "v5e": 197e12,
    "v5p": 459e12,
    "v6e": 918e12,
    "a100": 312e12,
    "h100": 989e12,
    "h200": 989e12,
    "l4": 121e12,
    "a10": 125e12,
    "rtx4090": 165.2e12,
}
"""Dense bfloat16 peak of a chip, summed in float32 [FLOP/s]. Source: the makers' data sheets, where
those with sparsity count twice; for RTX 4090 NVIDIA's white paper on Ada."""

# Sources: memory is the limit in the errors of libtpu 0.0.42; peak, links and bandwidth are from
# the vendor's system pages. The clock of v6e is inferred from its peak relative to v5e, given four
# times as many multipliers. Hosts are the vendors' machines: of a TPU those of Cloud TPU, where one
# host of v5e or v6e has up to 8 chips, and each of several has 4; GPUs come in boxes of 8. Those of
# 24 GB have no NVLink: their links are the 16 lanes of PCI Express 4.
CHIPS = {
    "v4": Chip(
        hbm_bytes=30.75 * GIB,
        peak_flops=PEAK_FLOPS["v4"],
        clock_hz=1.05e9,
        memory_bandwidth=1.228e12,
        link_bytes=45e9,
        megacore=True,
        host_chips=4,
        slice_host_chips=4,
        ray_type="TPU-V4",
    ),
    "v5e": Chip(
        hbm_bytes=15.75 * GIB,
        peak_flops=PEAK_FLOPS["v5e"],
        clock_hz=1.5e9,
        memory_bandwidth=819e9,
        link_bytes=45e9,
        slice_host_chips=4,
        ray_type="TPU-V5LITEPOD",
    ),
    "v6e": Chip(
        hbm_bytes=31.25 * GIB,
        peak_flops=PEAK_FLOPS["v6e"],
        clock_hz=1.75e9,
        memory_bandwidth=1.64e12,
        link_bytes=90e9,
        slice_host_chips=4,
        ray_type="TPU-V6E",
    ),
    **{
        kind: Chip(
            hbm_bytes=gib * GIB,
            peak_flops=PEAK_FLOPS[kind],
            link_bytes=link_bytes,
            memory_bandwidth=GPU_DEVICES[kind].memory_bandwidth,
        )
        for kind, gib, link_bytes in (
            ("a100", 79.2, 300e9),
            ("h100", 79.2, 450e9),
            ("h200", 139.8, 450e9),
            ("l4", 22.0, 32e9),
            ("a10", 22.0, 32e9),
            ("rtx4090", 23.6, 32e9),
        )
    },
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice: "v4:8x8x4" is 256 chips of v4 in a torus of three axes, "h100:8" is eight GPUs.

    Attributes:
      kind: kind of the chips, a key of `CHIPS`.
      shape: sides of the torus [chips].
    """

    kind: str
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "Topology":
        """Returns the topology with a name, such as "v4:8x8x4".

        Raises:
          ValueError: if the chip is unknown, the shape is not numbers joined by x, or the chips
            are no whole number of hosts.
        """
        kind, _, shape = text.partition(":")
        sides = tuple(int(side) if side.isdecimal() else 0 for side in shape.split("x"))
        if kind not in CHIPS or not all(sides):
            raise ValueError(
                f"topology must be one of {', '.join(CHIPS)}, a colon and sides joined by x, such "
                f"as v4:8x8x4, v5e:16x16 or h100:8; got {text!r}."
            )
        topology = cls(kind, sides)
        if topology.num_chips % topology.chips_per_host:
            raise ValueError(
                f"topology must be at most {topology.chip.host_chips} chips of {kind}, which are "
                f"one host, or whole hosts of {topology.chips_per_host}; got {text!r}."
            )
        return topology

    def __str__(self) -> str:
        return f"{self.kind}:{'x'.join(map(str, self.shape))}"

    @property
    def chip(self) -> Chip:
        """The kind of chip that the slice has."""
        return CHIPS[self.kind]

    @property
    def num_chips(self) -> int:
        """Number of chips in the slice."""
        return math.prod(self.shape)

    @property
    def chips_per_host(self) -> int:
        """Number of chips that each host of the slice has."""
        if self.num_chips <= self.chip.host_chips:
            return self.num_chips
        return self.chip.slice_host_chips

    @property
    def num_hosts(self) -> int:
        """Number of hosts of the slice."""
        return self.num_chips // self.chips_per_host

    def with_chips(self, count: int) -> "Topology":
        """Returns so many chips of this kind: all of them, a host's, or those of several slices.

        Slices are joined along the first axis, as if there were no slower network between them.
        """
        if count == self.num_chips:
            return self
        if self.chip.is_gpu:
            return Topology(self.kind, (count,))
        first, *others = self.shape
        if count % self.num_chips == 0:
            return Topology(self.kind, (first * count // self.num_chips, *others))
        # A host of a slice is a square of chips: of 8x8x4, 2x2x1.
        side = math.isqrt(count)
        sides = (side, count // side) if side * (count // side) == count else (1, count)
        return Topology(self.kind, (*sides, *(1 for _ in others[1:])))

    @property
    def one_chip(self) -> "Topology":
        """One chip of this kind."""
        return Topology(self.kind, (1,) * len(self.shape))

    def group_bytes(self, chips: int) -> float:
        """Returns the bandwidth from one chip to a group of neighbours [bytes/s].

        The group is assumed to span as few axes of the torus as can hold it, the longest first, and
        to use both directions of each. GPUs are joined by a switch.
        """
        # Each axis that a group spans adds two links to every chip. In v4:8x8x4:
        #
        #   8 chips     one axis of 8            2 links
        #   64 chips    8 x 8                    4 links
        #   256 chips   the whole torus          6 links
        if self.chip.is_gpu:
            return self.chip.link_bytes  # Of all its links together: a switch joins any two.
        spanned, axes = 1, 0
        for side in sorted(self.shape, reverse=True):
            if spanned >= chips:
                break
            spanned, axes = spanned * side, axes + 1
        return 2 * max(axes, 1) * self.chip.link_bytes
