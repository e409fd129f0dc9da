"""The connector a configuration names."""

from flax import nnx

from model.config import ModelConfig
from model.connector.base import Connector
from model.connector.m3 import M3, M3SelfAttention
from model.connector.mqt import Mqt, MqtSelfAttention
from model.connector.parcel import Parcel
from model.connector.vanilla import Vanilla


def build_connector(cfg: ModelConfig, *, rngs: nnx.Rngs) -> Connector:
    """Returns the freshly initialized connector of `cfg.connector.kind`."""
    match cfg.connector.kind:
        case "vanilla":
            return Vanilla()
        case "m3" | "avgpool4" | "avgpool2":
            return M3()
        case "m3_sa":
            return M3SelfAttention(cfg, rngs=rngs)
        case "mqt":
            return Mqt(cfg, rngs=rngs)
        case "mqt_sa":
            return MqtSelfAttention(cfg, rngs=rngs)
        case _:
            return Parcel(cfg, rngs=rngs)
