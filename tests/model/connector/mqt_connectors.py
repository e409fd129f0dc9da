"""Connectors of one's own that are made with MQT."""

import typing

from flax import nnx

from model.connector import mqt
from model.connector.config import ConnectedConfig
from model.connector.routing import Routing


class ExtendsMqt(mqt.Mqt):
    """MQT whose tokens are twice as large."""

    routing: typing.ClassVar = Routing(reads="nothing")

    def __call__(self, features, *, bucket, budget):
        return 2 * super().__call__(features, bucket=bucket, budget=budget)


class HasMqt(nnx.Module):
    """MQT as a layer of another one."""

    routing: typing.ClassVar = Routing(reads="nothing")

    def __init__(self, cfg: ConnectedConfig, *, rngs: nnx.Rngs) -> None:
        self.inner = mqt.Mqt(cfg, rngs=rngs)

    def __call__(self, features, *, bucket, budget):
        return -self.inner(features, bucket=bucket, budget=budget)
