"""The connector a configuration names."""

import typing

from flax import nnx

from model.connector.base import Connector
from model.connector.config import ConnectedConfig
from model.connector.m3 import M3, M3SelfAttention
from model.connector.mqt import Mqt, MqtSelfAttention
from model.connector.parcel import Parcel
from model.connector.routing import Module
from model.connector.vanilla import Vanilla

_MODULES: dict[Module, typing.Callable[..., Connector]] = {
    "Vanilla": Vanilla,
    "M3": M3,
    "M3SelfAttention": M3SelfAttention,
    "Mqt": Mqt,
    "MqtSelfAttention": MqtSelfAttention,
    "Parcel": Parcel,
}


def build_connector(cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> Connector:
    """Returns the freshly initialized connector of `cfg.connector.kind`."""
    return _MODULES[cfg.connector.routing.module](cfg, rngs=rngs)
