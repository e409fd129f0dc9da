"""The table of connector kinds: how each makes soft tokens, as one `Routing` value.

A method pools features, or reads them with learned queries, or does both:

    pooling           [ cells of one grid            ]   vanilla, avgpool2, avgpool4, m3, m3_sa
    queries           [ q0 q1 q2 ...                 ]   mqt, mqt_sa
    anchors, queries  [ cells of one grid | q0 q1 ...]   parcel and its ablations

Budgets, their checks, the modules and the arithmetic of `analysis` read these values; none of them
tests for a kind by name. A user's own connector brings its value as the attribute `routing` of its
class (see `base.Connector`).
"""

import dataclasses
import typing

from infra.references import load_reference

Kind = typing.Literal[
    "vanilla",
    "m3",
    "mqt",
    "parcel",
    "avgpool4",
    "avgpool2",
    "parcel_fixed4",
    "parcel_fixed2",
    "parcel_vit_only",
    "parcel_dual",
    "mqt_sa",
    "m3_sa",
]
KINDS: tuple[Kind, ...] = typing.get_args(Kind)

Module = typing.Literal["Vanilla", "M3", "M3SelfAttention", "Mqt", "MqtSelfAttention", "Parcel"]
Reads = typing.Literal["nothing", "anchors", "anchors and queries"]

DOUBLING = tuple(2**i for i in range(1, 11))
"""Sides of grids that double from 2 on; those that do not divide the patch grid are skipped."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Routing:
    """The way in which a method makes soft tokens out of a square grid of features.

    Without any of `kernel`, `grids` and `sizes`, every even budget is served, from the fewest
    anchors (or 2) to as many tokens as there are patches.

    Attributes:
      module: the class of `model.connector` that builds it; None for a user's own connector.
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

    module: Module | None = None
    kernel: int = 0
    grids: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    anchor_grids: tuple[int, ...] = ()
    reads: Reads | None = None

    def __post_init__(self) -> None:
        if self.reads not in (None, *typing.get_args(Reads)):
            raise ValueError(
                f"routing.reads must be None or one of {', '.join(typing.get_args(Reads))}, got "
                f"{self.reads!r}."
            )
        stated = [name for name in ("kernel", "grids", "sizes") if getattr(self, name)]
        if len(stated) > 1:
            raise ValueError(f"routing must state one of {' and '.join(stated)}, not both.")
        if not stated and self.reads is None:
            raise ValueError(
                "routing must state its budgets: kernel, grids or sizes; or what its queries read, "
                'such as reads="nothing", which serves every even budget.'
            )
        if stated and self.anchor_grids:
            raise ValueError(f"routing.anchor_grids must come without {stated[0]}.")
        for name in ("grids", "sizes", "anchor_grids"):
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
    def has_attention(self) -> bool:
        """Whether it is a built-in with attention layers, whose heads must divide the width."""
        return self.module not in (None, "Vanilla", "M3")

    @property
    def has_parameters(self) -> bool:
        """Whether it has parameters to train; a user's own connector is assumed to have some."""
        return self.module not in ("Vanilla", "M3")

    @property
    def factor(self) -> int:
        """The number that must divide the side of the patch grid [patches]."""
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
        if self.sizes:
            return tuple(size for size in self.sizes if size <= grid * grid)
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


def routing_of(kind: str) -> Routing:
    """Returns the routing of a method: one of this table, or a user's own class, "module:Class".

    A user's own class is imported, and JAX with it.

    Raises:
      ValueError: if there is no such method, or its class does not state its routing; in one line.
    """
    known = ROUTINGS.get(typing.cast(Kind, kind))
    return known or own_class(kind).routing


def own_class(kind: str) -> typing.Any:
    """Returns the class of a user's own connector.

    Raises:
      ValueError: if there is none, or it lacks what `base.Connector` requires; in one line.
    """
    if ":" not in kind:
        raise ValueError(
            f"connector.kind must be one of {', '.join(KINDS)}, or a class of your own as "
            f"module:Class, got {kind!r}."
        )
    found = load_reference(kind)
    if not isinstance(found, type):
        raise ValueError(f"{kind} must be a class, a flax.nnx.Module, got {found!r:.60}.")
    routing = getattr(found, "routing", None)
    if not isinstance(routing, Routing) or routing.module is not None:
        told = "none" if routing is None else f"{routing!r:.60}"
        raise ValueError(
            f"{kind}.routing must be a Routing of its own, which says the budgets it serves, such "
            f'as routing = Routing(reads="nothing"), got {told}.'
        )
    return found
