"""Builds the connector that a configuration names: a built-in one, or a user's own class."""

import typing

from flax import nnx

from model.connector.base import Connector
from model.connector.config import ConnectedConfig
from model.connector.m3 import M3, M3SelfAttention
from model.connector.mqt import Mqt, MqtSelfAttention
from model.connector.parcel import Parcel
from model.connector.routing import Module, own_class, routing_of
from model.connector.vanilla import Vanilla

_MODULES: dict[Module, typing.Callable[..., Connector]] = {
    "Vanilla": Vanilla,
    "M3": M3,
    "M3SelfAttention": M3SelfAttention,
    "Mqt": Mqt,
    "MqtSelfAttention": MqtSelfAttention,
    "Parcel": Parcel,
}


def connector_class(kind: str) -> typing.Callable[..., Connector]:
    """Returns the class of a method: (cfg, *, rngs) -> `Connector`.

    Raises:
      ValueError: if there is none; see `routing.own_class`.
    """
    module = routing_of(kind).module
    return own_class(kind) if module is None else _MODULES[module]


def build_connector(cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> Connector:
    """Returns the freshly initialized connector of `cfg.connector.kind`."""
    return connector_class(cfg.connector.kind)(cfg, rngs=rngs)
