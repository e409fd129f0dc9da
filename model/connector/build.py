"""Builds the connector that a configuration names: a built-in one, or a user's own class."""

from flax import nnx

from model.connector.base import Connector
from model.connector.config import ConnectedConfig
from model.connector.registry import connector_class


def build_connector(cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> Connector:
    """Returns the freshly initialized connector of `cfg.connector.kind`."""
    return connector_class(cfg.connector.kind)(cfg, rngs=rngs)
