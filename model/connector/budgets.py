"""Soft-token budgets: which a connector serves, in which shape bucket, and which a step draws.

| method                               | at 224 px        | at 448 px              | anchors       |
|--------------------------------------|------------------|------------------------|---------------|
| vanilla                              | 256              | 1024                   |               |
| m3, m3_sa                            | 4, 16, 64, 256   | 4, 16, 64, 256, 1024   |               |
| avgpool4                             | 16               | 64                     |               |
| avgpool2                             | 64               | 256                    |               |
| mqt, mqt_sa                          | even, 2 ... 256  | even, 2 ... 1024       |               |
| parcel, parcel_vit_only, parcel_dual | even, 16 ... 256 | even, 16 ... 1024      | 16, 64, (256) |
| parcel_fixed4                        | even, 16 ... 256 | even, 16 ... 1024      | 16            |
| parcel_fixed2                        | even, 64 ... 256 | even, 64 ... 1024      | 64            |

Source: PARCEL, section 3 and app. Implementation Details. Its ablations exist at 224 px only: at
448 px poolings keep their kernel, and fixed routings their number of anchors [inferred].
"""

import dataclasses
import functools
import typing

import numpy as np

if typing.TYPE_CHECKING:
    from model.config import ModelConfig

Kind = typing.Literal[
    "vanilla", "m3", "mqt", "parcel", "avgpool4", "avgpool2", "parcel_fixed4", "parcel_fixed2",
    "parcel_vit_only", "parcel_dual", "mqt_sa", "m3_sa",
]  # fmt: skip

POOLED = frozenset({"vanilla", "m3", "m3_sa", "avgpool4", "avgpool2"})
"""Methods without queries: their few budgets have a program each, and no slot is ever masked."""

ANCHORED = frozenset({"parcel", "parcel_fixed4", "parcel_fixed2", "parcel_vit_only", "parcel_dual"})
"""Methods whose first soft tokens are pooled features, and whose others are queries."""

_KERNELS = {"vanilla": 1, "avgpool2": 2, "avgpool4": 4}
"""Side of the cells that methods of one budget pool [patches]."""

SMALLEST_ANCHOR_GRID = 4
"""Side of PARCEL's coarsest anchor grid; finer ones double it, up to half the patch grid."""

_FIXED_ANCHOR_GRIDS = {"parcel_fixed4": 4, "parcel_fixed2": 8}
"""Side of the only anchor grid; at 224 px a 4x4 and a 2x2 average pooling make it."""

# Mean step cost over all budgets, relative to one program per budget (which is a multiple of 8:
# the TPU's tile makes others no faster). At 224 px 1.03 or less, by the times of the 3B step
# compiled for v4:8x8x4. At 448 px 1.03 or less, by its FLOPs with that stage's 512 text tokens;
# with 128 it would be 1.04, and no other 12 programs do better.
_ROUTED_BUCKETS = {
    16: (40, 62, 96, 128, 160, 192, 232, 256),
    32: (62, 160, 254, 344, 432, 520, 608, 696, 784, 864, 944, 1024),
}
_EVEN_BUCKETS = {16: tuple(range(32, 257, 32)), 32: (*range(88, 1024, 88), 1024)}


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

    16 anchors below 64 tokens, 64 below 256, 256 above; never as many as there are patches. With
    a fixed routing always the same. Source: PARCEL, section 3; 0 for connectors without anchors.
    """
    if cfg.connector.kind not in ANCHORED:
        return 0
    return max(a for a in _anchor_counts(cfg.connector.kind, cfg.vision.grid) if a <= budget)


def check_grid(kind: Kind, grid: int) -> None:
    """Raises ValueError unless the method's pooling divides a patch grid of side `grid`."""
    factor = _KERNELS.get(kind, 1)
    if kind in ("m3", "m3_sa"):
        factor = 2
    if kind in ANCHORED:
        factor = 2 * _FIXED_ANCHOR_GRIDS.get(kind, SMALLEST_ANCHOR_GRID)
    if grid % factor:
        raise ValueError(
            f"vision.image_px / vision.patch_px must be a multiple of {factor} for {kind!r}, "
            f"got {grid}."
        )


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
    if kind in POOLED and sizes and set(sizes) != set(served):
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
    if kind in _KERNELS:
        return (patches // _KERNELS[kind] ** 2,)
    if kind in ("m3", "m3_sa"):
        sides = [side for side in range(2, grid + 1) if grid % side == 0 and _power_of_two(side)]
        return tuple(side * side for side in sides)
    first = _anchor_counts(kind, grid)[0] if kind in ANCHORED else 2
    return tuple(range(first, patches + 1, 2))


def _anchor_counts(kind: Kind, grid: int) -> list[int]:
    if kind in _FIXED_ANCHOR_GRIDS:
        return [_FIXED_ANCHOR_GRIDS[kind] ** 2]
    sides = []
    side = SMALLEST_ANCHOR_GRID
    while 2 * side <= grid and grid % side == 0:
        sides.append(side)
        side *= 2
    return [s * s for s in sides]


def _default_buckets(kind: Kind, grid: int) -> tuple[int, ...]:
    served = _supported(kind, grid)
    if kind in POOLED:
        return served
    routed = kind in ANCHORED and kind not in _FIXED_ANCHOR_GRIDS
    known = _ROUTED_BUCKETS if routed else _EVEN_BUCKETS
    if grid in known:
        return tuple(size for size in known[grid] if size >= served[0])
    if kind in ANCHORED:
        return (*(a - 2 for a in _anchor_counts(kind, grid)[1:]), grid * grid)
    step = max(grid * grid // 8, 2)
    return tuple(sorted({*range(step, grid * grid, step), grid * grid}))


def _power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def _describe(served: tuple[int, ...]) -> str:
    if len(served) <= 6:
        return ", ".join(str(b) for b in served)
    return f"{served[0]}, {served[1]}, ..., {served[-1]} (even)"
