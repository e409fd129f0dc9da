"""Soft-token budgets: which a connector serves, in which shape bucket, and which a step draws."""

import dataclasses
import functools
import typing

import numpy as np

if typing.TYPE_CHECKING:
    from model.config import ModelConfig

Kind = typing.Literal["vanilla", "m3", "mqt", "parcel"]

SMALLEST_ANCHOR_GRID = 4
"""Side of PARCEL's coarsest anchor grid; finer ones double it, up to half the patch grid."""

_PARCEL_BUCKETS = {
    # 1.028 x the mean step time of one program per budget, on the 3B step compiled for v4:8x8x4.
    16: (40, 62, 96, 128, 160, 192, 232, 256),
    32: (40, 62, 128, 192, 254, 352, 448, 544, 640, 736, 880, 1024),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bucket:
    """One compiled shape: every budget in it runs as `size` slots, the last ones masked.

    Attributes:
      size: slots for soft tokens, per image [tokens].
      num_anchors: leading slots holding pooled features; 0 where the connector has none.
    """

    size: int
    num_anchors: int

    @property
    def num_queries(self) -> int:
        """Slots holding query outputs."""
        return self.size - self.num_anchors


def supported_budgets(cfg: "ModelConfig") -> tuple[int, ...]:
    """Returns every budget the connector serves, ascending [tokens per image]."""
    return _supported(cfg.connector.kind, cfg.vision.grid)


def check_budget(cfg: "ModelConfig", budget: int) -> None:
    """Raises ValueError, listing the supported budgets, if the connector cannot serve `budget`."""
    served = supported_budgets(cfg)
    if budget not in served:
        raise ValueError(
            f"budget must be one of {_describe(served)} for connector "
            f"{cfg.connector.kind!r} at {cfg.vision.image_px} px, got {budget}."
        )


def num_anchors(cfg: "ModelConfig", budget: int) -> int:
    """Returns how many of `budget` soft tokens are pooled anchors (PARCEL's routing).

    16 anchors below 64 tokens, 64 below 256, 256 above; never as many as there are patches.
    Source: PARCEL, section 3; 0 for connectors without anchors.
    """
    if cfg.connector.kind != "parcel":
        return 0
    return max(a for a in _anchor_counts(cfg.vision.grid) if a <= budget)


def buckets(cfg: "ModelConfig") -> tuple[Bucket, ...]:
    """Returns the declared shapes: the only ones training compiles, one program each."""
    sizes = cfg.connector.buckets or _default_buckets(cfg.connector.kind, cfg.vision.grid)
    return tuple(Bucket(size=s, num_anchors=num_anchors(cfg, s)) for s in sorted(sizes))


def bucket_of(cfg: "ModelConfig", budget: int) -> Bucket:
    """Returns the smallest declared bucket that serves `budget` with the same anchors."""
    check_budget(cfg, budget)
    anchors = num_anchors(cfg, budget)
    return next(b for b in buckets(cfg) if b.size >= budget and b.num_anchors == anchors)


def exact_bucket(cfg: "ModelConfig", budget: int) -> Bucket:
    """Returns a bucket with no masked slot: for evaluation at a few fixed budgets."""
    check_budget(cfg, budget)
    return Bucket(size=budget, num_anchors=num_anchors(cfg, budget))


def check_buckets(cfg: "ModelConfig") -> None:
    """Raises ValueError if `connector.buckets` leaves a supported budget without a bucket."""
    served = supported_budgets(cfg)
    kind, sizes = cfg.connector.kind, cfg.connector.buckets
    unknown = sorted(set(sizes) - set(served))
    if unknown:
        raise ValueError(
            f"connector.buckets must be budgets of {kind!r}, {_describe(served)}, got {unknown}."
        )
    if kind in ("vanilla", "m3") and sizes and set(sizes) != set(served):
        raise ValueError(
            f"connector.buckets of {kind!r} must be exactly {served} (or empty), got {sizes}."
        )
    declared = buckets(cfg)
    for budget in served:
        anchors = num_anchors(cfg, budget)
        if not any(b.size >= budget and b.num_anchors == anchors for b in declared):
            largest = max(b for b in served if num_anchors(cfg, b) == anchors)
            raise ValueError(
                f"connector.buckets must hold every budget, got {sizes} with none for {budget} "
                f"({anchors} anchors); add {largest}."
            )


def draw_budget(
    cfg: "ModelConfig", seed: int, step: int, choices: tuple[int, ...] | None = None
) -> int:
    """Returns the training budget of a step, uniform over `choices`.

    A pure function of its arguments, so that every host, and every resumed run, draws the same.

    Args:
      cfg: the model.
      seed: of the run.
      step: the update it is for.
      choices: budgets to draw from; None takes every supported one.
    """
    served = choices or supported_budgets(cfg)
    generator = np.random.Generator(np.random.Philox(key=[seed, step]))
    budget = served[int(generator.integers(len(served)))]
    check_budget(cfg, budget)
    return budget


@functools.cache
def _supported(kind: Kind, grid: int) -> tuple[int, ...]:
    patches = grid * grid
    if kind == "vanilla":
        return (patches,)
    if kind == "m3":
        sides = [side for side in range(2, grid + 1) if grid % side == 0 and _power_of_two(side)]
        return tuple(side * side for side in sides)
    if kind == "mqt":
        return tuple(range(2, patches + 1, 2))
    return tuple(range(SMALLEST_ANCHOR_GRID**2, patches + 1, 2))


def _anchor_counts(grid: int) -> list[int]:
    sides = []
    side = SMALLEST_ANCHOR_GRID
    while 2 * side <= grid and grid % side == 0:
        sides.append(side)
        side *= 2
    return [s * s for s in sides]


def _default_buckets(kind: Kind, grid: int) -> tuple[int, ...]:
    served = _supported(kind, grid)
    if kind in ("vanilla", "m3"):
        return served
    if kind == "parcel":
        if grid in _PARCEL_BUCKETS:
            return _PARCEL_BUCKETS[grid]
        edges = [a - 2 for a in _anchor_counts(grid)[1:]]
        return (*edges, grid * grid)
    step = max(grid * grid // 8, 2)
    return tuple(sorted({*range(step, grid * grid, step), grid * grid}))


def _power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def _describe(served: tuple[int, ...]) -> str:
    if len(served) <= 6:
        return ", ".join(str(b) for b in served)
    return f"{served[0]}, {served[1]}, ..., {served[-1]} (even)"
