"""The configuration of a connector, and the fields of a model that connectors read."""

import dataclasses
import typing

from infra.store.digest import born
from model.check import check_positive
from model.connector.registry import has_mqt, routing_of
from model.connector.routing import Routing
from model.vision.config import VisionConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectorConfig:
    """The configuration of a connector, which turns image features into soft tokens.

    Defaults of settings that the papers leave open are marked [inferred], and options that none of
    them has [ours].

    Attributes:
      kind: the method: a name in `registry.CONNECTORS`, or a user's own class as "module:Class".
      num_heads: attention heads; must divide the vision width (papers: 12 on 1152).
      mlp_dim: hidden channels of the MLP of PARCEL and of the capacity controls; 0 means the
        vision tower's.
      buckets: declared shapes [tokens per image]; empty means the method's own list.
      mqt_keys: what MQT's queries attend to, those of `mqt_sa` too: "positional", positions alone,
        as in the official code; or "content", features plus positions [ours]. None is MQT's own,
        "positional".
      parcel_key_positions: whether PARCEL adds fixed positions to its cross-attention keys; off
        [inferred], as SigLIP features carry positions already. Applies to its ablations too.
      query_std: standard deviation of the initial query bank: the official MQT's, and PARCEL's
        [inferred].
    """

    kind: str = "vanilla"
    num_heads: int = 12
    mlp_dim: int = 0
    buckets: tuple[int, ...] = ()
    mqt_keys: typing.Literal["content", "positional"] | None = dataclasses.field(
        default=None, metadata=born("content")
    )
    parcel_key_positions: bool = False
    query_std: float = 0.02

    def __post_init__(self) -> None:
        routing_of(self.kind)
        check_positive(self, "connector", zero_ok=("mlp_dim",))

    def of_kind(self, kind: str) -> "ConnectorConfig":
        """Returns these settings for a method, with `mqt_keys` filled in.

        Raises:
          ValueError: see `registry.connector_class`.
        """
        # Where there is nothing of MQT, the field decides nothing, and is at the value that it was
        # born with, which is left out of keys: its new default changes only those of MQT.
        keys = self.mqt_keys or ("positional" if has_mqt(kind) else "content")
        return dataclasses.replace(self, kind=kind, mqt_keys=keys)

    @property
    def routing(self) -> Routing:
        """The routing of the method's entry in the registry, or of the user's own class."""
        return routing_of(self.kind)


class ConnectedConfig(typing.Protocol):
    """The fields of a model that connectors read; see `vision.config.TowerConfig`."""

    @property
    def vision(self) -> VisionConfig: ...
    @property
    def connector(self) -> ConnectorConfig: ...
