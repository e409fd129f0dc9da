"""Soft-token budgets: those that a connector serves, their shape buckets, and the draw of a step.

| patches     | 16 x 16        | 32 x 32              | 24 x 24            | anchors              |
|-------------|----------------|----------------------|--------------------|----------------------|
| vanilla     | 256            | 1024                 | 576                |                      |
| m3, m3_sa   | 4, 16, 64, 256 | 4, 16, 64, 256, 1024 | 1, 9, 36, 144, 576 |                      |
| avgpool4    | 16             | 64                   | 36                 |                      |
| avgpool2    | 64             | 256                  | 144                |                      |
| mqt, mqt_sa | 2 ... 256      | 2 ... 1024           | 2 ... 576          |                      |
| parcel      | 16 ... 256     | 16 ... 1024          | 36 ... 576         | 16, 64, 256; 36, 144 |
| ... _fixed4 | 16 ... 256     | 16 ... 1024          | 36 ... 576         | 16; 36               |
| ... _fixed2 | 64 ... 256     | 64 ... 1024          | 144 ... 576        | 64; 144              |

Patches are those of 224, of 448, and of CLIP-L's 336 px; "..." is every even number between. The
ablations `parcel_vit_only` and `parcel_dual` are as `parcel`, which has 256 anchors on 32 x 32.

Source: PARCEL, section 3 and app. Implementation Details; M3 for its own at 24 x 24. The ablations
exist at 224 px only: at 448 px poolings keep their kernel, and fixed routings their number of
anchors [inferred]. At 24 x 24 the paper's poolings of 4 x 4 and 2 x 2 patches make the anchors
[inferred]; see `routing.halves`.
"""

import dataclasses

import numpy as np

from model.connector.config import ConnectedConfig
from model.connector.registry import CONNECTORS
from model.connector.routing import Routing

# Chosen for a low mean step cost over all budgets, relative to one program per budget (in multiples
# of 8: the TPU's tile makes sizes between them no faster). At 224 px it is 1.03 or less, by the
# times of the 3B step compiled for v4:8x8x4. At 448 px it is 1.03 or less, by the step's FLOPs with
# that stage's 512 text tokens; with 128 it would be 1.04, and no other 12 programs do better.
_ROUTED_BUCKETS = {
    16: (40, 62, 96, 128, 160, 192, 232, 256),
    32: (62, 160, 254, 344, 432, 520, 608, 696, 784, 864, 944, 1024),
}
_EVEN_BUCKETS = {16: tuple(range(32, 257, 32)), 32: (*range(88, 1024, 88), 1024)}
_SPREAD_BUCKETS = 10
"""About how many shapes other grids have. At 24 x 24 patches, in LLaVA-1.5, 10 cost 1.05 by the
step's FLOPs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlotBucket:
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


def supported_budgets(cfg: ConnectedConfig) -> tuple[int, ...]:
    """Returns every budget the connector serves, ascending [tokens per image]."""
    return cfg.connector.routing.budgets(cfg.vision.grid)


def check_budget(cfg: ConnectedConfig, budget: int) -> None:
    """Raises ValueError, listing the supported budgets, if the connector cannot serve `budget`."""
    supported = supported_budgets(cfg)
    if budget not in supported:
        raise ValueError(
            f"budget must be one of {_describe_budgets(supported)} for connector "
            f"{cfg.connector.kind!r} at {cfg.vision.image_px} px, got {budget}."
        )


def num_anchors(cfg: ConnectedConfig, budget: int) -> int:
    """Returns how many of `budget` soft tokens are pooled anchors (PARCEL's routing).

    16 anchors below 64 tokens, 64 below 256, 256 above; never as many as there are patches. On
    24 x 24 patches 36 and 144, as their poolings have the same kernels [inferred]. With a fixed
    routing always the same. Source: PARCEL, section 3; 0 for connectors without anchors.
    """
    return cfg.connector.routing.num_anchors(cfg.vision.grid, budget)


def buckets(cfg: ConnectedConfig) -> tuple[SlotBucket, ...]:
    """Returns the declared shapes: the only ones training compiles, one program each."""
    sizes = cfg.connector.buckets or _default_buckets(cfg.connector.routing, cfg.vision.grid)
    # A size is a budget, too: its own number of anchors is that of the whole bucket.
    return tuple(SlotBucket(size=s, num_anchors=num_anchors(cfg, s)) for s in sorted(sizes))


def bucket_of(cfg: ConnectedConfig, budget: int) -> SlotBucket:
    """Returns the smallest declared bucket that serves `budget` with the same anchors."""
    # Budget 50 of `parcel` at 224 px: 16 anchors, and the bucket of 62 slots with as many:
    #
    #     [ 16 anchors | q0 … q33 | q34 … q45 ]
    #       visible      visible     masked
    check_budget(cfg, budget)
    anchors = num_anchors(cfg, budget)
    return next(b for b in buckets(cfg) if b.size >= budget and b.num_anchors == anchors)


def exact_bucket(cfg: ConnectedConfig, budget: int) -> SlotBucket:
    """Returns a bucket with no masked slot: for evaluation at a few fixed budgets."""
    check_budget(cfg, budget)
    return SlotBucket(size=budget, num_anchors=num_anchors(cfg, budget))


def check_connector(cfg: ConnectedConfig) -> None:
    """Raises ValueError unless the connector's settings fit it and the vision tower."""
    kind, heads, width = cfg.connector.kind, cfg.connector.num_heads, cfg.vision.width
    routing, grid = cfg.connector.routing, cfg.vision.grid
    # What layers a user's class has is not known here; it checks its own sizes.
    has_attention = kind in CONNECTORS and CONNECTORS[kind].has_parameters
    if has_attention and width % heads:
        raise ValueError(f"connector.num_heads must divide vision.width={width}, got {heads}.")
    if has_attention and not routing.pooled and width % 4:
        raise ValueError(
            f"vision.width must be a multiple of 4 for {kind!r} (sine and cosine of two axes), "
            f"got {width}."
        )
    if grid % routing.factor or grid < routing.smallest_grid:
        least = f", {routing.smallest_grid} at least," if grid < routing.smallest_grid else ""
        raise ValueError(
            f"vision.image_px / vision.patch_px must be a multiple of {routing.factor}{least} for "
            f"{kind!r}, got {grid}."
        )
    _check_buckets(cfg)


def _check_buckets(cfg: ConnectedConfig) -> None:
    """Raises ValueError if `connector.buckets` leaves a supported budget without a bucket."""
    supported = supported_budgets(cfg)
    kind, sizes = cfg.connector.kind, cfg.connector.buckets
    if not supported:
        raise ValueError(
            f"{kind} serves no budget at {cfg.vision.image_px} px, {cfg.vision.num_patches} "
            f"patches; its routing must state budgets of at most that many tokens."
        )
    # Sizes that no budget has would be programs that nothing needs.
    unknown = sorted(set(sizes) - set(supported))
    if unknown:
        raise ValueError(
            f"connector.buckets must be budgets of {kind!r}, {_describe_budgets(supported)}, got "
            f"{unknown}."
        )
    # A pooled grid has no slots to mask: each budget needs its own program.
    if cfg.connector.routing.pooled and sizes and set(sizes) != set(supported):
        raise ValueError(
            f"connector.buckets of {kind!r} must be exactly {supported} (or empty), got {sizes}."
        )
    # A bucket serves the budgets up to its size that have its number of anchors. For `parcel`:
    #
    #     anchors      16 .......... 62 | 64 ................. 256
    #     buckets        [40]      [62] | [96] [128] …       [256]
    #
    # without 62, budgets 42 to 62 would have none: 96 slots hold 64 anchors.
    declared = buckets(cfg)
    for budget in supported:
        anchors = num_anchors(cfg, budget)
        if not any(b.size >= budget and b.num_anchors == anchors for b in declared):
            largest = max(b for b in supported if num_anchors(cfg, b) == anchors)
            raise ValueError(
                f"connector.buckets must hold every budget, got {sizes} with none for {budget} "
                f"({anchors} anchors); add {largest}."
            )


def training_budgets(cfg: ConnectedConfig, listed: tuple[int, ...] | None) -> tuple[int, ...]:
    """Returns the budgets a stage draws from: those of its list that the connector serves.

    One list suits several methods: from [16, 64, 256], vanilla draws 256.

    Args:
      cfg: config of the model.
      listed: `train.budgets`; None takes every budget the connector serves.

    Raises:
      ValueError: if the connector serves none of them.
    """
    supported = supported_budgets(cfg)
    if listed is None:
        return supported
    common = tuple(budget for budget in listed if budget in supported)
    if not common:
        raise ValueError(
            f"train.budgets must hold some of {_describe_budgets(supported)} for connector "
            f"{cfg.connector.kind!r} at {cfg.vision.image_px} px, got {list(listed)}."
        )
    return common


def draw_budget(
    cfg: ConnectedConfig, seed: int, step: int, listed: tuple[int, ...] | None = None
) -> int:
    """Returns the budget of one update, uniform over `training_budgets`.

    A pure function of its arguments, so that every host, and every resumed run, draws the same. One
    draw for all devices is [ours] for MQT: the official code draws in each process.

    Args:
      cfg: config of the model.
      seed: seed of the budgets (see `seeds`).
      step: number of the update.
      listed: see `training_budgets`.
    """
    choices = training_budgets(cfg, listed)
    # A counter-based generator, keyed by seed and step: no stream that a resumed run would have to
    # catch up with.
    generator = np.random.Generator(np.random.Philox(key=[seed, step]))
    return choices[int(generator.integers(len(choices)))]


def _default_buckets(routing: Routing, grid: int) -> tuple[int, ...]:
    supported = routing.budgets(grid)
    # Pooled grids differ in every slot, so each budget has a program.
    if routing.pooled:
        return supported
    if routing.sizes:
        max_buckets = len(_ROUTED_BUCKETS[32])
        # Thinned from the largest downwards, so that the largest is among them.
        return supported[:: -max(1, -(-len(supported) // max_buckets))][::-1]
    stated = routing.anchor_grids or routing.anchor_halves
    measured_buckets = _ROUTED_BUCKETS if len(stated) > 1 else _EVEN_BUCKETS
    if grid in measured_buckets:
        return tuple(size for size in measured_buckets[grid] if size >= supported[0])
    # The number of anchors changes at each count but the first. A bucket has one number of
    # anchors, so one must end just below each of these counts.
    starts = routing.anchor_counts(grid) or supported[:1]
    ends = (*(count - 2 for count in starts[1:]), supported[-1])
    if stated and grid < min(_ROUTED_BUCKETS):
        return ends
    # The others lie below each end, a step apart. On 24 x 24 patches, with 36 and 144 anchors:
    #
    #     88 142 | 198 252 306 360 414 468 522 576
    step = -(-(supported[-1] - supported[0]) // (2 * _SPREAD_BUCKETS)) * 2
    spans = zip(starts, ends, strict=True)
    return tuple(sorted(size for first, end in spans for size in range(end, first, -step)))


def _describe_budgets(supported: tuple[int, ...]) -> str:
    if len(supported) <= 6 or supported != tuple(range(supported[0], supported[-1] + 1, 2)):
        return ", ".join(str(b) for b in supported)
    return f"{supported[0]}, {supported[1]}, ..., {supported[-1]} (even)"
