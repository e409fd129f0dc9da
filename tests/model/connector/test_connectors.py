"""Tests of the connectors: their sizes, and what their tokens may and may not depend on."""

import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from model import presets, vlm
from model.config import ModelConfig
from model.connector import budgets
from model.connector.base import pool
from model.connector.build import build_connector
from model.connector.config import ConnectorConfig
from model.connector.registry import CONNECTORS, KINDS
from tests.model.tiny_models import ELASTIC_KINDS, tiny_config

assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
WIDTH = 12
FEATURES = np.random.default_rng(0).normal(size=(2, 256, WIDTH)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).normal(size=(2, 256, WIDTH)).astype(np.float32)
PREFIX = ("mqt", "parcel_vit_only", "parcel_dual")
"""Queries never read each other: a smaller budget's are a prefix of a larger one's."""


@functools.cache
def _connector(cfg: ModelConfig) -> tuple[vlm.Structure, vlm.Params]:
    return vlm.split(typing.cast(typing.Any, build_connector(cfg, rngs=nnx.Rngs(7))))


@functools.partial(jax.jit, static_argnames=("cfg", "bucket"))
def _tokens(cfg: ModelConfig, params: vlm.Params, features, bucket: int, budget) -> jax.Array:
    return nnx.merge(_connector(cfg)[0], params)(features, bucket=bucket, budget=budget)


def tokens(kind: str, bucket: int, budget: int, *, params: vlm.Params | None = None, **changes):
    """Returns the soft tokens that count, of random features."""
    cfg = config(kind, **changes)
    params = _connector(cfg)[1] if params is None else params
    return np.asarray(_tokens(cfg, params, FEATURES, bucket, jnp.int32(budget)))[:, :budget]


@functools.partial(jax.jit, static_argnames=("cfg", "bucket"))
def _gradients(cfg: ModelConfig, params, features, weights, bucket: int, budget):
    """Returns a weighted sum of the soft tokens that count, and its gradients."""

    def total(params: vlm.Params, features: jax.Array) -> jax.Array:
        found = _tokens(cfg, params, features, bucket, budget)
        used = jnp.where((jnp.arange(bucket) < budget)[None, :, None], found, 0.0)
        return jnp.sum(used * weights[:, :bucket])

    value, (by_params, by_features) = jax.value_and_grad(total, argnums=(0, 1))(params, features)
    return value, by_params, by_features


def config(kind: str, **changes: typing.Any) -> ModelConfig:
    cfg = tiny_config(kind)
    return dataclasses.replace(cfg, connector=dataclasses.replace(cfg.connector, **changes))


def size_of(kind: str, px: int) -> int:
    connector = ConnectorConfig(kind=typing.cast(typing.Any, kind))
    shapes = vlm.abstract_params(presets.paligemma2_3b(connector, image_px=px))
    return sum(int(np.prod(x.shape)) for x in jax.tree.leaves(shapes.get("connector", {})))


# D = 1152: attention 4 (D² + D), MLP 2 D 4304 + 4304 + D, norm 2 D, and a bank of rows of D.
@pytest.mark.parametrize(
    ("kind", "at_224", "at_448"),
    [
        ("vanilla", 0, 0),
        ("m3", 0, 0),
        ("avgpool4", 0, 0),
        ("avgpool2", 0, 0),
        ("mqt", 5_614_848, 6_499_584),
        ("parcel", 20_778_320, 21_441_872),
        ("parcel_fixed4", 20_833_616, 21_718_352),
        ("parcel_fixed2", 20_778_320, 21_663_056),
        ("parcel_vit_only", 15_462_992, 16_126_544),
        ("parcel_dual", 20_778_320, 21_441_872),
        ("mqt_sa", 20_854_352, 21_739_088),
        ("m3_sa", 20_554_832, 20_554_832),
    ],
)
def test_the_3b_models_connectors_have_their_sizes(kind: str, at_224: int, at_448: int):
    assert (size_of(kind, 224), size_of(kind, 448)) == (at_224, at_448)


def test_capacity_controls_are_of_parcels_size():
    sizes = [size_of(kind, 224) / size_of("parcel", 224) for kind in ("mqt_sa", "m3_sa")]
    assert all(0.98 < size < 1.02 for size in sizes)


@pytest.mark.parametrize("kind", KINDS)
def test_every_budget_gives_its_number_of_tokens(kind: str):
    cfg = config(kind)
    for budget in budgets.supported_budgets(cfg)[:: 60 if kind in ELASTIC_KINDS else 1]:
        shape = jax.eval_shape(
            functools.partial(_tokens, cfg, bucket=budget, budget=jnp.int32(budget)),
            _connector(cfg)[1],
            FEATURES,
        )
        assert shape.shape == (2, budget, WIDTH)


def test_anchors_are_the_means_of_their_cells():
    grid = jnp.arange(16.0).reshape(1, 16, 1)
    np.testing.assert_array_equal(pool(grid, 4)[0, :, 0], [2.5, 4.5, 10.5, 12.5])
    with pytest.raises(ValueError, match="square of a divisor of 4"):
        pool(grid, 9)


@pytest.mark.parametrize(("kind", "budget"), [("avgpool4", 16), ("avgpool2", 64), ("m3", 16)])
def test_poolings_are_means(kind: str, budget: int):
    np.testing.assert_array_equal(tokens(kind, budget, budget), pool(jnp.asarray(FEATURES), budget))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if CONNECTORS[kind].routing.anchor_halves])
def test_anchors_pass_unchanged_before_the_queries(kind: str):
    anchors = 16 if kind == "parcel_fixed4" else 64
    assert budgets.num_anchors(config(kind), 70) == anchors
    found = tokens(kind, 100, 70)
    assert_close(found[:, :anchors], pool(jnp.asarray(FEATURES), anchors))
    assert np.abs(found[:, anchors:]).max(axis=-1).min() > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ELASTIC_KINDS)
def test_tokens_and_gradients_in_a_bucket_are_those_of_truncation(kind: str):
    cfg = config(kind)
    _, params = _connector(cfg)
    served = [b for b in budgets.supported_budgets(cfg) if b <= 100]

    @settings(max_examples=3, derandomize=True)
    @given(budget=st.sampled_from(served))
    def check(budget: int) -> None:
        same = budgets.num_anchors(cfg, budget) == budgets.num_anchors(cfg, 100)
        masked, exact = (
            _gradients(cfg, params, FEATURES, WEIGHTS, bucket, jnp.int32(budget))
            for bucket in (100 if same else 62, budget)
        )
        for a, b in zip(jax.tree.leaves(masked), jax.tree.leaves(exact), strict=True):
            assert np.linalg.norm(a - b) <= 1e-5 * max(np.linalg.norm(b), 1.0)

    check()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if CONNECTORS[kind].routing.anchor_halves])
def test_without_queries_nothing_of_them_is_active(kind: str):
    cfg = config(kind)
    _, params = _connector(cfg)
    budget = budgets.num_anchors(cfg, 100)
    others = jax.tree.map(lambda x: x + 1.0, params)
    found = tokens(kind, 100, budget)
    np.testing.assert_array_equal(found, tokens(kind, 100, budget, params=others))
    gradient = _gradients(cfg, params, FEATURES, WEIGHTS, 100, jnp.int32(budget))[1]
    assert all(np.all(np.asarray(g) == 0.0) for g in jax.tree.leaves(gradient))
    # Their program has no queries in it at all.
    shape = functools.partial(_tokens, cfg, bucket=budget, budget=jnp.int32(budget))
    assert "dot_general" not in str(jax.make_jaxpr(shape)(params, FEATURES))


@pytest.mark.parametrize("kind", [k for k in ELASTIC_KINDS if CONNECTORS[k].has_parameters])
def test_tokens_are_made_of_the_first_rows_of_the_bank(kind: str):
    cfg, budget = config(kind), 70
    rows = budget - budgets.num_anchors(cfg, budget)
    _, params = _connector(cfg)
    path = ("mqt", "queries") if kind == "mqt_sa" else ("queries",)

    def changed(row: int) -> vlm.Params:
        def change(where, leaf):
            here = tuple(str(key.key) for key in where) == path
            return leaf.at[row, 0].add(3.0) if here else leaf

        return jax.tree_util.tree_map_with_path(change, params)

    before = tokens(kind, 100, budget)
    np.testing.assert_array_equal(tokens(kind, 100, budget, params=changed(rows)), before)
    last = tokens(kind, 100, budget, params=changed(rows - 1))
    assert np.abs(last - before)[:, -1].max() > 1e-3
    reach = np.abs(last - before).max(axis=(0, 2))[:-1]
    assert np.all(reach == 0.0) if kind in PREFIX else np.any(reach > 0.0)


@pytest.mark.parametrize("kind", PREFIX)
def test_fewer_queries_are_a_prefix_of_more(kind: str):
    assert_close(tokens(kind, 66, 66), tokens(kind, 100, 100)[:, :66])


def test_ablations_differ_from_parcel_in_what_queries_read():
    found = {kind: tokens(kind, 100, 100)[:, 64:] for kind in ("parcel", "parcel_dual")}
    assert np.abs(found["parcel"] - found["parcel_dual"]).max() > 1e-3
    _, params = _connector(config("parcel_vit_only"))
    assert set(params) == {
        "queries",
        "query_norm",
        "feature_norm",
        "feature_attn",
        "mlp_norm",
        "mlp",
    }


@pytest.mark.parametrize(("keys", "odd"), [("positional", True), ("content", False)])
def test_official_mqt_attends_by_position_alone(keys: str, odd: bool):
    # Weights that do not depend on the image make MQT linear in its normalized values, which
    # change their sign with the features (all biases are zero at first).
    cfg = config("mqt", mqt_keys=keys)
    _, params = _connector(cfg)
    one, other = (np.asarray(_tokens(cfg, params, sign * FEATURES, 32, 32)) for sign in (1, -1))
    assert np.allclose(one, -other, rtol=1e-4, atol=1e-5) == odd
