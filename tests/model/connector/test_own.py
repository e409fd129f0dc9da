"""A connector of one's own: its budgets and shapes, and where it goes the way of ours."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from model import vlm
from model.analysis import flops
from model.analysis.attention import record_attention
from model.config import ModelConfig
from model.connector import budgets
from model.connector.build import build_connector, connector_class
from model.connector.registry import KINDS
from model.connector.routing import Routing
from tests.model.connector import own_connectors
from tests.model.tiny_models import batch, init_params, loss_and_gradient, tiny_config

OWN = "tests.model.connector.own_connectors"


def own(name: str) -> ModelConfig:
    return tiny_config(f"{OWN}:{name}")


def test_ones_own_is_found_and_built():
    cfg = own("Prefix")
    assert connector_class(cfg.connector.kind) is own_connectors.Prefix
    module = nnx.eval_shape(lambda: build_connector(cfg, rngs=nnx.Rngs(0)))
    assert isinstance(module, own_connectors.Prefix)
    assert budgets.supported_budgets(cfg) == tuple(range(2, 257, 2))
    assert [b.size for b in budgets.buckets(cfg)] == list(range(32, 257, 32))


def test_it_may_extend_one_of_ours():
    cfg = own("FourAnchors")
    assert budgets.supported_budgets(cfg) == tuple(range(4, 257, 2))
    assert {budgets.num_anchors(cfg, budget) for budget in (4, 100, 256)} == {4}


@pytest.mark.slow
def test_a_budget_in_a_larger_shape_has_the_loss_and_gradient_of_its_own():
    cfg, data = own("Prefix"), batch(num_images=1)
    params = init_params(cfg, 3)
    masked, exact = (
        loss_and_gradient(cfg, params, vlm.Slots(bucket, 14), data) for bucket in (32, 14)
    )
    np.testing.assert_allclose(masked[0], exact[0], rtol=1e-5)
    for a, b in zip(*map(jax.tree.leaves, (masked[1], exact[1])), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6)


@given(
    sizes=st.sets(st.integers(1, 140), min_size=1, max_size=40),
    grid=st.sampled_from([4, 6, 16]),
    elastic=st.booleans(),
)
def test_stated_sizes_are_served_each_in_a_shape_that_holds_it(
    sizes: set[int], grid: int, elastic: bool
):
    stated = tuple(sorted(2 * size for size in sizes))
    routing = Routing(sizes=stated, reads="nothing" if elastic else None)
    served = routing.budgets(grid)
    assert served == tuple(size for size in stated if size <= grid * grid)
    if served:
        shapes = budgets._default_buckets(routing, grid)
        assert set(shapes) <= set(served)
        assert shapes[-1] == served[-1]
        assert list(shapes) == sorted(shapes)
        assert shapes == served if not elastic else len(shapes) <= 12


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("parcl", "connector.kind must be one of vanilla, m3, .* or a class of your own"),
        ("nothing_such.at:All", "nothing_such.at cannot be imported: .*; install it, put its"),
        (f"{OWN}:Nobody", "own_connectors has no 'Nobody'; .*own_connectors.py must define it"),
        (f"{OWN}:NOT_A_CLASS", "must be a class, a flax.nnx.Module, got 3"),
        (f"{OWN}:WithoutRouting", r"WithoutRouting.routing must be a Routing, .*, got none"),
        (f"{OWN}:OtherRouting", r"OtherRouting.routing must be a Routing, .*, got 'even'"),
    ],
)
def test_one_that_is_none_is_told_in_a_line(kind: str, told: str):
    with pytest.raises(ValueError, match=told) as refused:
        tiny_config(kind)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "must state its budgets: kernel, grids, halved or sizes"),
        ({"kernel": 2, "grids": (2, 4)}, "one of kernel and grids, not both"),
        ({"sizes": (4, 2)}, "routing.sizes must be positive and ascending"),
        ({"sizes": (2, 5)}, r"routing.sizes must be even, since .*, got \[5\]"),
        ({"reads": "everything"}, "routing.reads must be None or one of nothing, anchors"),
        ({"sizes": (2,), "anchor_grids": (2,)}, "anchor_grids must come without sizes"),
        (
            {"anchor_grids": (2,), "anchor_halves": (0,), "reads": "anchors"},
            "anchor_grids must come without anchor_halves",
        ),
        ({"anchor_halves": (1, 0), "reads": "anchors"}, "anchor_halves must be 0 or more, and asc"),
    ],
)
def test_a_routing_that_contradicts_itself_is_refused(values: dict, told: str):
    with pytest.raises(ValueError, match=told):
        Routing(**values)


def test_one_that_serves_nothing_at_a_size_is_refused():
    vision = dataclasses.replace(own("Stated").vision, image_px=4)
    with pytest.raises(ValueError, match="serves no budget at 4 px, 4 patches"):
        dataclasses.replace(own("Stated"), vision=vision)


def test_xla_counts_one_without_a_formula():
    cfg, ours = own("Prefix"), tiny_config("mqt")
    # Its layers are MQT's, but for norms: one attention from queries to features.
    for budget in (14, 256):
        formula = flops.connector_flops(ours, budget)
        assert 1.0 <= flops.connector_flops(cfg, budget) / formula <= 1.25
    prompt = flops.Modality(name="two", num_images=2, text_tokens=9)
    parts = flops.prefill_flops(cfg, 14, prompt)
    assert parts.connector == 2 * flops.connector_flops(cfg, 14)
    assert parts.decoder == flops.prefill_flops(ours, 14, prompt).decoder


def test_a_formula_of_its_own_counts():
    assert flops.connector_flops(own("Stated"), 14) == 7 * 14 * 12
    kinds = [
        cfg.connector.kind
        for cfg in flops.with_connectors(tiny_config("m3"), extra_kinds=[f"{OWN}:Prefix"])
    ]
    assert kinds == [*KINDS, f"{OWN}:Prefix"]


def test_the_attention_that_it_names_is_watched():
    cfg = own("Prefix")
    params = vlm.split(build_connector(cfg, rngs=nnx.Rngs(7)))[1]
    features = np.random.default_rng(0).normal(size=(2, 256, 12)).astype(np.float32)
    watched = record_attention(cfg, params, features, 14)
    assert watched.weights is not None
    assert watched.weights.shape == (2, 14, 256)
    np.testing.assert_allclose(np.sum(watched.weights, axis=-1), 1.0, rtol=1e-5)
