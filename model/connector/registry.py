"""The registry of connectors: kind -> class, routing and FLOPs, without importing JAX.

The class of a connector carries `routing` and, if it likes, `flops` (see `base.Connector`). A
user's class and a built-in one are built, checked and counted by the same functions. The one
difference is where the two values are written. A user's class is imported as soon as a config
names it, and JAX with it. Built-in ones may not be: configs are read, graphs drawn and costs
counted in processes that stay free of JAX. Their values are therefore written here, and their
classes take them from here:

    registry.py    "mqt": BuiltIn("model.connector.mqt", "Mqt", Routing(reads="nothing"), mqt_flops)

    mqt.py         class Mqt(nnx.Module):
                       routing = CONNECTORS["mqt"].routing
                       flops = staticmethod(CONNECTORS["mqt"].flops)

To add a connector to the tree, write its module and its entry below; no other code lists them.

This module is no part of a step's code, which goes on with the connector that the step's config
names: of its entry, `class_and_routing` counts, and an edit of a formula remakes nothing.
"""

import dataclasses
import sys
import typing
from collections.abc import Callable

from infra.errors import did_you_mean
from infra.references import load_reference
from model.connector.costs import attention_flops, mlp_flops
from model.connector.routing import ALL_HALVES, Routing
from model.vision.config import VisionConfig


class _ConnectorSizes(typing.Protocol):
    @property
    def mlp_dim(self) -> int: ...
    @property
    def routing(self) -> Routing: ...


class ModelSizes(typing.Protocol):
    """The fields of a model that formulas read; every `config.ConnectedConfig` has them."""

    @property
    def vision(self) -> VisionConfig: ...
    @property
    def connector(self) -> _ConnectorSizes: ...


FlopsFormula = Callable[[ModelSizes, int], int]
"""(cfg, budget) -> FLOPs of the connector for one image."""


def pooling_flops(cfg: ModelSizes, budget: int) -> int:
    """Returns 0: a mean over cells multiplies no matrices."""
    del cfg, budget
    return 0


def m3_self_attention_flops(cfg: ModelSizes, budget: int) -> int:
    """Returns the FLOPs of two self-attentions over the pooled cells, and an MLP."""
    width = cfg.vision.width
    attention = attention_flops(budget, budget, width)
    return 2 * attention + mlp_flops(budget, width, _connector_mlp_dim(cfg))


def mqt_flops(cfg: ModelSizes, budget: int) -> int:
    """Returns the FLOPs of one attention from `budget` queries to the features."""
    return attention_flops(budget, cfg.vision.num_patches, cfg.vision.width)


def mqt_self_attention_flops(cfg: ModelSizes, budget: int) -> int:
    """Returns the FLOPs of MQT, then a self-attention over its outputs, and an MLP."""
    width = cfg.vision.width
    attention = attention_flops(budget, budget, width)
    return mqt_flops(cfg, budget) + attention + mlp_flops(budget, width, _connector_mlp_dim(cfg))


def parcel_flops(cfg: ModelSizes, budget: int) -> int:
    """Returns the FLOPs of PARCEL, or of an ablation that reads less before the features.

    Source: PARCEL, appendix "FLOP and KV-Cache Calculations".
    """
    vision, routing = cfg.vision, cfg.connector.routing
    anchors = routing.num_anchors(vision.grid, budget)
    queries = budget - anchors
    if not queries:
        return 0  # At a budget of anchors alone, the connector just pools.
    # The paper counts the whole self-attention, although only the queries' rows are read.
    first = {
        "nothing": 0,
        "anchors": attention_flops(queries, anchors, vision.width),
        "anchors and queries": attention_flops(budget, budget, vision.width),
    }[routing.reads or "nothing"]
    to_features = attention_flops(queries, vision.num_patches, vision.width)
    return first + to_features + mlp_flops(queries, vision.width, _connector_mlp_dim(cfg))


def tokenflex_flops(cfg: ModelSizes, budget: int) -> int:
    """Returns the FLOPs of pooling, a product along each axis, and of a gated MLP on the cells."""
    width, grid, side = cfg.vision.width, cfg.vision.grid, round(budget**0.5)
    pooling = 2 * side * grid * (grid + side) * width
    return pooling + 6 * budget * width * _connector_mlp_dim(cfg)


def selection_flops(cfg: ModelSizes, budget: int) -> int:
    """Returns the FLOPs of the similarities of all features, whatever the budget."""
    del budget
    return 2 * cfg.vision.num_patches**2 * cfg.vision.width


def _connector_mlp_dim(cfg: ModelSizes) -> int:
    return cfg.connector.mlp_dim or cfg.vision.mlp_dim


@dataclasses.dataclass(frozen=True)
class BuiltIn:
    """A connector of this project.

    Attributes:
      module: the module of its class.
      name: name of its class.
      routing: the budgets it serves, and what its queries read.
      flops: its formula.
      has_parameters: whether it has any to train; they are then those of attention layers, whose
        heads must divide the width.
    """

    module: str
    name: str
    routing: Routing
    flops: FlopsFormula
    has_parameters: bool = True


_PARCEL = Routing(anchor_halves=ALL_HALVES, reads="anchors and queries")


def _parcel_built_in(**changes: typing.Any) -> BuiltIn:
    routing = dataclasses.replace(_PARCEL, **changes)
    return BuiltIn("model.connector.parcel", "Parcel", routing, parcel_flops)


def _pooling_built_in(routing: Routing) -> BuiltIn:
    return BuiltIn("model.connector.m3", "M3", routing, pooling_flops, has_parameters=False)


CONNECTORS: dict[str, BuiltIn] = {
    "vanilla": BuiltIn(
        "model.connector.vanilla",
        "Vanilla",
        Routing(kernel=1),
        pooling_flops,
        has_parameters=False,
    ),
    "m3": _pooling_built_in(Routing(halved=True)),
    "mqt": BuiltIn("model.connector.mqt", "Mqt", Routing(reads="nothing"), mqt_flops),
    "parcel": _parcel_built_in(),
    "avgpool4": _pooling_built_in(Routing(kernel=4)),
    "avgpool2": _pooling_built_in(Routing(kernel=2)),
    # Their names are those of the poolings at 224 px: 4 x 4 patches for 16 anchors, 2 x 2 for 64.
    "parcel_fixed4": _parcel_built_in(anchor_halves=(0,)),
    "parcel_fixed2": _parcel_built_in(anchor_halves=(1,)),
    "parcel_vit_only": _parcel_built_in(reads="nothing"),
    "parcel_dual": _parcel_built_in(reads="anchors"),
    "mqt_sa": BuiltIn(
        "model.connector.mqt",
        "MqtSelfAttention",
        Routing(reads="nothing"),
        mqt_self_attention_flops,
    ),
    "m3_sa": BuiltIn(
        "model.connector.m3", "M3SelfAttention", Routing(halved=True), m3_self_attention_flops
    ),
    # Squares of even sides: at 224 px those of 4, 8, 12 and 16, the paper's last three.
    "tokenflex": BuiltIn(
        "model.connector.tokenflex",
        "TokenFlex",
        Routing(sizes=(16, 64, 144, 256, 576, 1024)),
        tokenflex_flops,
    ),
    "id_selection": BuiltIn(
        "model.connector.id_selection",
        "IdSelection",
        Routing(reads="nothing"),
        selection_flops,
        has_parameters=False,
    ),
}
KINDS = CONNECTORS.keys()


def routing_of(kind: str) -> Routing:
    """Returns the routing of a connector; that of a user's class is imported, and JAX with it.

    Raises:
      ValueError: see `connector_class`.
    """
    built_in = CONNECTORS.get(kind)
    return built_in.routing if built_in else connector_class(kind).routing


def flops_formula(kind: str) -> Callable[[typing.Any, int], typing.Any] | None:
    """Returns the formula of a connector's FLOPs; None where XLA counts them.

    Raises:
      ValueError: see `connector_class`.
    """
    if built_in := CONNECTORS.get(kind):
        return built_in.flops
    formula = getattr(connector_class(kind), "flops", None)
    # A user's class that extends a built-in one inherits its formula, and may have other layers.
    inherited = any(formula is built_in.flops for built_in in CONNECTORS.values())
    return None if inherited else formula


def has_parameters(kind: str) -> bool:
    """Returns whether a connector has parameters to train; a user's class is assumed to have."""
    return kind not in CONNECTORS or CONNECTORS[kind].has_parameters


def has_mqt(kind: str) -> bool:
    """Returns whether a connector is MQT, extends it, or is of a module that takes it from there.

    Raises:
      ValueError: see `connector_class`.
    """
    module = CONNECTORS["mqt"].module
    if kind in CONNECTORS:
        return CONNECTORS[kind].module == module
    cls = connector_class(kind)
    beside = vars(sys.modules[cls.__module__]).values()
    # A class says where it is from by `__module__`, and a module by its own name.
    return any(
        module in (getattr(x, "__module__", None), getattr(x, "__name__", None))
        for x in (*cls.__mro__, *beside)
    )


def connector_modules(kind: str) -> tuple[str, ...]:
    """Returns the module of a built-in connector's class; none for a user's class."""
    return (CONNECTORS[kind].module,) if kind in CONNECTORS else ()


def class_and_routing(kind: str) -> dict[str, typing.Any]:
    """Returns the class and the routing of a built-in connector; {} for a user's class."""
    if kind not in CONNECTORS:
        return {}
    built_in = CONNECTORS[kind]
    return {"class": built_in.name, "routing": built_in.routing}


def connector_class(kind: str) -> typing.Any:
    """Returns the class of a connector: (cfg, *, rngs) -> `base.Connector`.

    Raises:
      ValueError: if there is none, or it lacks what `base.Connector` requires; in one line.
    """
    # A name in the table, or a class of the user's as "module:Class". The module is imported only
    # now: naming a built-in connector in a config must not bring in JAX.
    if built_in := CONNECTORS.get(kind):
        reference = f"{built_in.module}:{built_in.name}"
    elif ":" in kind:
        reference = kind
    else:
        raise ValueError(
            f"connector.kind must be one of {', '.join(KINDS)}, or a class of your own as "
            f"module:Class, got {kind!r}{did_you_mean(kind, KINDS) or '.'}"
        )
    connector = load_reference(reference)
    if not isinstance(connector, type):
        raise ValueError(f"{kind} must be a class, a flax.nnx.Module, got {connector!r:.60}.")
    # Only what must be known before anything is built. `contract` tries the rest by running it.
    routing = getattr(connector, "routing", None)
    if not isinstance(routing, Routing):
        value = "none" if routing is None else f"{routing!r:.60}"
        raise ValueError(
            f"{kind}.routing must be a Routing, which says the budgets it serves, such as "
            f'routing = Routing(reads="nothing"), got {value}.'
        )
    return connector
