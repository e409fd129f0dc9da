"""The attention that is analysed is the one that made the soft tokens."""

import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose

from model import vlm
from model.analysis.attention import RecordingAttention, record_attention
from model.config import ModelConfig
from model.connector import budgets
from model.connector.build import build_connector
from model.connector.registry import CONNECTORS, KINDS
from model.vision.layers import Attention
from tests.model.tiny_models import tiny_config
from tests.slices import day_slice

ANY_SIZE = [kind for kind in KINDS if not kind.startswith("avgpool")]
FEATURES = jax.random.normal(jax.random.key(4), (2, 256, 12))


@functools.partial(jax.jit, static_argnums=(0, 1))
def both(cfg: ModelConfig, budget: int) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Returns the soft tokens of a connector, of the watched one, and its weights."""
    connector: typing.Any = build_connector(cfg, rngs=nnx.Rngs(1))
    params = vlm.split(connector)[1]
    tokens = connector(FEATURES, bucket=budget, budget=jnp.int32(budget))
    return tokens, *record_attention(cfg, params, FEATURES, budget)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "budget"),
    day_slice(
        [
            *((kind, 256) for kind in ANY_SIZE),
            ("parcel", 16),
            ("parcel", 100),
            ("parcel_fixed2", 66),
            ("mqt", 30),
            ("avgpool4", 16),
            ("avgpool2", 64),
            ("m3", 4),
        ],
        [("parcel", 256), ("parcel", 100), ("parcel_fixed2", 66), ("mqt", 30), ("m3", 4)],
    ),
)
def test_the_watched_connector_gives_the_connectors_soft_tokens(kind: str, budget: int):
    cfg = tiny_config(kind)
    expected, tokens, weights = both(cfg, budget)
    assert_allclose(tokens, expected, rtol=2e-5, atol=2e-5)
    entry = CONNECTORS[kind]
    has_queries = entry.has_parameters and not entry.routing.pooled
    queries = budget - budgets.num_anchors(cfg, budget) if has_queries else 0
    if queries == 0:
        assert weights is None
        return
    assert weights is not None
    assert weights.shape == (2, queries, 256)
    assert_allclose(jnp.sum(weights, axis=-1), 1, rtol=1e-5)


def test_weights_are_averaged_over_heads():
    layer = Attention(12, 3, rngs=nnx.Rngs(2))
    watched = RecordingAttention(layer)
    queries = jax.random.normal(jax.random.key(5), (2, 7, 12))
    visible = jnp.arange(256) != 9
    out = watched(queries, FEATURES, FEATURES, visible=visible)
    assert_allclose(out, layer(queries, FEATURES, FEATURES, visible=visible), rtol=1e-5, atol=1e-5)
    query, key = np.asarray(layer.query(queries)), np.asarray(layer.key(FEATURES))
    expected = np.zeros((2, 7, 256))
    for head in (slice(0, 4), slice(4, 8), slice(8, 12)):
        exponentials = np.exp(query[..., head] @ key[..., head].swapaxes(1, 2) / 2)
        exponentials[..., 9] = 0
        expected += exponentials / exponentials.sum(axis=-1, keepdims=True) / 3
    assert_allclose(watched.weights, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_watching_leaves_the_programs_as_they_were():
    cfg = tiny_config("parcel")
    before = _program(cfg)
    both(cfg, 96)
    assert _program(cfg) == before


def _program(cfg: ModelConfig) -> str:
    images = jax.ShapeDtypeStruct((1, 1, 32, 32, 3), jnp.float32)
    run = jax.jit(vlm.soft_tokens, static_argnums=0)
    args = vlm.abstract_params(cfg), images, vlm.Slots(96, 96)
    return run.lower(vlm.structure(cfg), *args).as_text()
