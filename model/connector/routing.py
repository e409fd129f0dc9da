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

DOUBLING = tuple(2**i for i in range(1, 11))
"""Sides of grids that double from 2 on; those that do not divide the patch grid are skipped."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Routing:
    """The way in which a method makes soft tokens out of a square grid of features.

    Without any of `kernel`, `grids` and `sizes`, every even budget is served, from the fewest
    anchors (or 2) to as many tokens as there are patches.

    Attributes:
      kernel: side of the cells of its only pooling; 0 where it has none, or several [patches].
      grids: sides of the grids it pools to; each budget uses one of them [cells].
      sizes: list of budgets, even and ascending; those above the number of patches are skipped
        [tokens].
      anchor_grids: sides of the grids of pooled anchors; a budget uses the finest grid that fits
        into it and whose side is at most half the patch grid's [cells].
      reads: what the queries read before they read the features; None where there are no queries,
        and each budget has its own program.

    Raises:
      ValueError: if these contradict each other.
    """

    kernel: int = 0
    grids: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    anchor_grids: tuple[int, ...] = ()
    reads: Reads | None = None

    def __post_init__(self) -> None:
        # Forms that say which budgets there are; all others are refused:
        #
        #     Routing(kernel=2)                                  one pooling
        #     Routing(grids=(2, 4, 8))                           a pooling for each budget
        #     Routing(sizes=(8, 32), reads="nothing")            queries, at listed budgets
        #     Routing(anchor_grids=(4, 8), reads="anchors")      anchors and queries
        if self.reads not in (None, *typing.get_args(Reads)):
            raise ValueError(
                f"routing.reads must be None or one of {', '.join(typing.get_args(Reads))}, got "
                f"{self.reads!r}."
            )
        budget_fields = [name for name in ("kernel", "grids", "sizes") if getattr(self, name)]
        if len(budget_fields) > 1:
            raise ValueError(f"routing must state one of {' and '.join(budget_fields)}, not both.")
        if not budget_fields and self.reads is None:
            raise ValueError(
                "routing must state its budgets: kernel, grids or sizes; or what its queries read, "
                'such as reads="nothing", which serves every even budget.'
            )
        if budget_fields and self.anchor_grids:
            raise ValueError(f"routing.anchor_grids must come without {budget_fields[0]}.")
        for name in ("grids", "sizes", "anchor_grids"):
            # Ascending, because the first is taken for the smallest in `factor` and `budgets`.
            values = getattr(self, name)
            if any(v < 1 for v in values) or list(values) != sorted(set(values)):
                raise ValueError(f"routing.{name} must be positive and ascending, got {values}.")
        if odd := [size for size in self.sizes if size % 2]:
            raise ValueError(f"routing.sizes must be even, got {odd}.")

    @property
    def pooled(self) -> bool:
        """Whether there are no queries: few budgets, a program each, and no slot ever masked."""
        return self.reads is None

    @property
    def factor(self) -> int:
        """The number that must divide the side of the patch grid [patches]."""
        if self.anchor_grids:
            return 2 * self.anchor_grids[0]
        return self.grids[0] if self.grids else max(self.kernel, 1)

    def anchor_counts(self, grid: int) -> tuple[int, ...]:
        """Returns the numbers of anchors on a patch grid of side `grid`, ascending [tokens]."""
        # On a grid of 16, sides 4 and 8 give 16 and 64 anchors. Side 16 does not count: its cells
        # are single patches, and no feature would be left for queries to add.
        sides = (side for side in self.anchor_grids if 2 * side <= grid and grid % side == 0)
        return tuple(side * side for side in sides)

    def num_anchors(self, grid: int, budget: int) -> int:
        """Returns how many of `budget` soft tokens are anchors on a patch grid of side `grid`."""
        fitting = (count for count in self.anchor_counts(grid) if count <= budget)
        return max(fitting, default=0)

    def budgets(self, grid: int) -> tuple[int, ...]:
        """Returns every budget served on a patch grid of side `grid`, ascending [tokens]."""
        if self.kernel:
            return ((grid // self.kernel) ** 2,)
        if self.grids:
            return tuple(side * side for side in self.grids if grid % side == 0)
        if self.sizes:
            return tuple(size for size in self.sizes if size <= grid * grid)
        first = self.anchor_counts(grid)[0] if self.anchor_grids else 2
        return tuple(range(first, grid * grid + 1, 2))
