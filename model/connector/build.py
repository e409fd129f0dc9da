"""The connector a configuration names."""

from flax import nnx

from model.config import ModelConfig
from model.connector.base import Connector
from model.connector.m3 import M3
from model.connector.mqt import Mqt
from model.connector.parcel import Parcel
from model.connector.vanilla import Vanilla


def build_connector(cfg: ModelConfig, *, rngs: nnx.Rngs) -> Connector:
    """Returns the freshly initialized connector of `cfg.connector.kind`."""
    match cfg.connector.kind:
        case "vanilla":
            return Vanilla()
        case "m3":
            return M3()
        case "mqt":
            return Mqt(cfg, rngs=rngs)
        case "parcel":
            return Parcel(cfg, rngs=rngs)
