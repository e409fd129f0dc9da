"""How a connector makes soft tokens, as one `Routing` value: the attribute `routing` of its class.

A method pools features, or reads them with learned queries, or does both:

    pooling           [ cells of one grid            ]   vanilla, avgpool2, avgpool4, m3, m3_sa
    queries           [ q0 q1 q2 ...                 ]   mqt, mqt_sa
    anchors, queries  [ cells of one grid | q0 q1 ...]   parcel and its ablations

Budgets, shape buckets and their checks are arithmetic on these values. None of it tests for a
kind by name, so a user's connector (see `base.Connector`) and a built-in one go the same way.
"""

import dataclasses
import typing

Reads = typing.Literal["nothing", "anchors", "anchors and queries"]

ALL_HALVES = tuple(range(8))
"""Every half of a patch grid, for `Routing.anchor_halves`."""

_COARSEST = 4
"""Cells along a side of the coarsest anchors, which keep "a minimal layout" (PARCEL, section 3)."""


def halves(grid: int) -> tuple[int, ...]:
    """Returns a grid's side and its halves, ascending [cells].

        16    2  4  8 16          PARCEL's poolings at 224 px
        32    2  4  8 16 32       ... and at 448 px
        24    1  3  6 12 24       those of M3 on CLIP-L at 336 px

    Halving ends at 2, or at an odd side, which the mean of all features follows.
    Source: PARCEL, app. Implementation Details; M3, arXiv:2405.17430.
    """
    sides = [grid]
    while sides[-1] % 2 == 0 and sides[-1] > 2:
        sides.append(sides[-1] // 2)
    if sides[-1] % 2 and sides[-1] > 1:
        sides.append(1)
    return tuple(reversed(sides))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Routing:
    """The way in which a method makes soft tokens out of a square grid of features.

    Without any of `kernel`, `grids`, `halved` and `sizes`, every even budget is served, from the
    fewest anchors (or 2) to as many tokens as there are patches.

    Attributes:
      kernel: side of the cells of its only pooling; 0 where it has none, or several [patches].
      grids: sides of the grids it pools to; each budget uses one of them [cells].
      halved: whether these grids are the patch grid and its `halves`.
      sizes: list of budgets, even and ascending; those above the number of patches are skipped
        [tokens].
      anchor_grids: sides of the grids of pooled anchors; a budget uses the finest grid that fits
        into it and whose side is at most half the patch grid's [cells].
      anchor_halves: numbers of the patch grid's `halves` that are such grids. Number 0 is the
        coarsest one with an even side of 4 or more; 4, 8 and 16 cells on a grid of 32, 6 and 12
        on one of 24.
      reads: what the queries read before they read the features; None where there are no queries,
        and each budget has its own program.

    Raises:
      ValueError: if these contradict each other.
    """

    kernel: int = 0
    grids: tuple[int, ...] = ()
    halved: bool = False
    sizes: tuple[int, ...] = ()
    anchor_grids: tuple[int, ...] = ()
    anchor_halves: tuple[int, ...] = ()
    reads: Reads | None = None

    def __post_init__(self) -> None:
        # Forms that say which budgets there are; all others are refused:
        #
        #     Routing(kernel=2)                                  one pooling
        #     Routing(grids=(2, 4, 8))                           a pooling for each budget
        #     Routing(halved=True)                               the same, as the patch grid has it
        #     Routing(sizes=(8, 32), reads="nothing")            queries, at listed budgets
        #     Routing(anchor_grids=(4, 8), reads="anchors")      anchors and queries
        #     Routing(anchor_halves=(0, 1), reads="anchors")     the same, as the patch grid has it
        if self.reads not in (None, *typing.get_args(Reads)):
            raise ValueError(
                f"routing.reads must be None or one of {', '.join(typing.get_args(Reads))}, got "
                f"{self.reads!r}."
            )
        fields = ("kernel", "grids", "halved", "sizes")
        budget_fields = [name for name in fields if getattr(self, name)]
        if len(budget_fields) > 1:
            raise ValueError(f"routing must state one of {' and '.join(budget_fields)}, not both.")
        if not budget_fields and self.reads is None:
            raise ValueError(
                "routing must state its budgets: kernel, grids, halved or sizes; or what its "
                'queries read, such as reads="nothing", which serves every even budget.'
            )
        # Two ways to say which grids of anchors there are, and neither goes with listed budgets.
        stated = [name for name in ("anchor_grids", "anchor_halves") if getattr(self, name)]
        if stated and len(excluded := [*stated, *budget_fields]) > 1:
            raise ValueError(f"routing.{excluded[0]} must come without {excluded[1]}.")
        for name, least in (("grids", 1), ("sizes", 1), ("anchor_grids", 1), ("anchor_halves", 0)):
            # Ascending, because the first is taken for the smallest in `factor` and `budgets`.
            values = getattr(self, name)
            if any(v < least for v in values) or list(values) != sorted(set(values)):
                wanted = "positive" if least else "0 or more,"
                raise ValueError(f"routing.{name} must be {wanted} and ascending, got {values}.")
        if odd := [size for size in self.sizes if size % 2]:
            raise ValueError(
                f"routing.sizes must be even, since training draws its budgets from the even "
                f"numbers, as the paper does, got {odd}."
            )

    @property
    def pooled(self) -> bool:
        """Whether there are no queries: few budgets, a program each, and no slot ever masked."""
        return self.reads is None

    @property
    def factor(self) -> int:
        """The number that must divide the side of the patch grid [patches]."""
        # An even side of half the patch grid takes a multiple of 4, of a quarter one of 8.
        if self.anchor_halves:
            return 4 * 2 ** self.anchor_halves[0]
        if self.anchor_grids:
            return 2 * self.anchor_grids[0]
        return self.grids[0] if self.grids else max(self.kernel, 1)

    @property
    def smallest_grid(self) -> int:
        """The least side of the patch grid [patches]."""
        first = self.anchor_halves[0] if self.anchor_halves else None
        return self.factor if first is None else 2 * _COARSEST * 2**first

    def anchor_counts(self, grid: int) -> tuple[int, ...]:
        """Returns the numbers of anchors on a patch grid of side `grid`, ascending [tokens]."""
        # On a grid of 16, sides 4 and 8 give 16 and 64 anchors. Side 16 does not count: its cells
        # are single patches, and no feature would be left for queries to add.
        if self.anchor_grids:
            sides = [s for s in self.anchor_grids if 2 * s <= grid and grid % s == 0]
        else:
            even = [s for s in halves(grid)[:-1] if s >= _COARSEST and s % 2 == 0]
            sides = [even[number] for number in self.anchor_halves if number < len(even)]
        return tuple(side * side for side in sides)

    def num_anchors(self, grid: int, budget: int) -> int:
        """Returns how many of `budget` soft tokens are anchors on a patch grid of side `grid`."""
        fitting = (count for count in self.anchor_counts(grid) if count <= budget)
        return max(fitting, default=0)

    def budgets(self, grid: int) -> tuple[int, ...]:
        """Returns every budget served on a patch grid of side `grid`, ascending [tokens]."""
        if self.kernel:
            return ((grid // self.kernel) ** 2,)
        if self.grids or self.halved:
            sides = halves(grid) if self.halved else self.grids
            return tuple(side * side for side in sides if grid % side == 0)
        if self.sizes:
            return tuple(size for size in self.sizes if size <= grid * grid)
        first = next(iter(self.anchor_counts(grid)), 2)
        return tuple(range(first, grid * grid + 1, 2))
