"""Which connector a model has, and what else connectors read of a model."""

import dataclasses
import typing

from model.check import check_positive
from model.connector.routing import Routing, routing_of
from model.vision.config import VisionConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectorConfig:
    """How image features become soft tokens.

    What the papers leave open has its default marked [inferred].

    Attributes:
      kind: the method: a name of `routing.ROUTINGS`, or a class of one's own, "module:Class".
      num_heads: attention heads; must divide the vision width (papers: 12 on 1152).
      mlp_dim: hidden channels of the MLP of PARCEL and of the capacity controls; 0 means the
        vision tower's.
      buckets: declared shapes [tokens per image]; empty means the method's own list.
      mqt_keys: what MQT's queries attend to: "content", features plus positions [inferred], or
        "positional", positions alone, as the released MQT-LLaVA code does. For `mqt_sa` too.
      parcel_key_positions: whether PARCEL adds fixed positions to its cross-attention keys; off
        [inferred], as SigLIP features carry positions already. For its ablations too.
      query_std: deviation of the initial query bank [inferred].
    """

    kind: str = "vanilla"
    num_heads: int = 12
    mlp_dim: int = 0
    buckets: tuple[int, ...] = ()
    mqt_keys: typing.Literal["content", "positional"] = "content"
    parcel_key_positions: bool = False
    query_std: float = 0.02

    def __post_init__(self) -> None:
        routing_of(self.kind)
        check_positive(self, "connector", zero_ok=("mlp_dim",))

    @property
    def routing(self) -> Routing:
        """How the method makes soft tokens."""
        return routing_of(self.kind)


class ConnectedConfig(typing.Protocol):
    """The fields of a model that connectors read; see `vision.config.TowerConfig`."""

    @property
    def vision(self) -> VisionConfig: ...
    @property
    def connector(self) -> ConnectorConfig: ...
