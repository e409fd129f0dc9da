"""How the methods differ: one value for each kind of connector, in one table.

A method pools features, or asks them with learned queries, or does both:

    pooling           [ cells of one grid            ]   vanilla, avgpool2, avgpool4, m3, m3_sa
    queries           [ q0 q1 q2 ...                 ]   mqt, mqt_sa
    anchors, queries  [ cells of one grid | q0 q1 ...]   parcel and its ablations

Budgets, their checks, the modules and the arithmetic of `analysis` read these values; none of
them asks for a kind by name.
"""

import dataclasses
import typing

Kind = typing.Literal[
    "vanilla", "m3", "mqt", "parcel", "avgpool4", "avgpool2", "parcel_fixed4", "parcel_fixed2",
    "parcel_vit_only", "parcel_dual", "mqt_sa", "m3_sa",
]  # fmt: skip
KINDS: tuple[Kind, ...] = typing.get_args(Kind)

Module = typing.Literal["Vanilla", "M3", "M3SelfAttention", "Mqt", "MqtSelfAttention", "Parcel"]

DOUBLING = tuple(2**i for i in range(1, 11))
"""Sides of grids that double from 2 on; those that divide no patch grid are passed over."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Routing:
    """How a method makes soft tokens out of a square grid of features.

    Attributes:
      module: the class of `model.connector` that builds it.
      kernel: side of the cells of its only pooling; 0 where it has none, or several [patches].
      grids: sides of the grids it pools to, of which a budget takes one [cells].
      anchor_grids: sides of the grids of pooled anchors; a budget takes the finest that it holds
        and that is at most half the patch grid [cells].
      reads: what the queries read before they read the features; None where there are no queries.
    """

    module: Module
    kernel: int = 0
    grids: tuple[int, ...] = ()
    anchor_grids: tuple[int, ...] = ()
    reads: typing.Literal["nothing", "anchors", "anchors and queries"] | None = None

    @property
    def pooled(self) -> bool:
        """Whether there are no queries: few budgets, a program each, and no slot ever masked."""
        return self.reads is None

    @property
    def has_attention(self) -> bool:
        """Whether the module has attention layers, whose heads must divide the width."""
        return self.module not in ("Vanilla", "M3")

    @property
    def factor(self) -> int:
        """Divides the side of every patch grid that the method can work on [patches]."""
        if self.anchor_grids:
            return 2 * self.anchor_grids[0]
        return self.grids[0] if self.grids else max(self.kernel, 1)

    def anchor_counts(self, grid: int) -> tuple[int, ...]:
        """Returns the numbers of anchors on a patch grid of side `grid`, ascending [tokens]."""
        sides = (side for side in self.anchor_grids if 2 * side <= grid and grid % side == 0)
        return tuple(side * side for side in sides)

    def budgets(self, grid: int) -> tuple[int, ...]:
        """Returns every budget served on a patch grid of side `grid`, ascending [tokens]."""
        if self.kernel:
            return ((grid // self.kernel) ** 2,)
        if self.grids:
            return tuple(side * side for side in self.grids if grid % side == 0)
        first = self.anchor_counts(grid)[0] if self.anchor_grids else 2
        return tuple(range(first, grid * grid + 1, 2))


_PARCEL = Routing(module="Parcel", anchor_grids=DOUBLING[1:], reads="anchors and queries")

ROUTINGS: dict[Kind, Routing] = {
    "vanilla": Routing(module="Vanilla", kernel=1),
    "m3": Routing(module="M3", grids=DOUBLING),
    "mqt": Routing(module="Mqt", reads="nothing"),
    "parcel": _PARCEL,
    "avgpool4": Routing(module="M3", kernel=4),
    "avgpool2": Routing(module="M3", kernel=2),
    "parcel_fixed4": dataclasses.replace(_PARCEL, anchor_grids=(4,)),
    "parcel_fixed2": dataclasses.replace(_PARCEL, anchor_grids=(8,)),
    "parcel_vit_only": dataclasses.replace(_PARCEL, reads="nothing"),
    "parcel_dual": dataclasses.replace(_PARCEL, reads="anchors"),
    "mqt_sa": Routing(module="MqtSelfAttention", reads="nothing"),
    "m3_sa": Routing(module="M3SelfAttention", grids=DOUBLING),
}
"""At 224 px an average pooling of 4 x 4 patches makes `parcel_fixed4`'s 16 anchors, one of 2 x 2
makes `parcel_fixed2`'s 64."""
