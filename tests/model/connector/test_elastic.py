"""A budget inside a larger bucket gives the loss and gradients of exact truncation."""

import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.connector import budgets
from model.connector.base import pool
from tests.model.tiny_models import init_params, loss_and_gradient, tiny_config

close = typing.cast(typing.Any, np.testing.assert_allclose)
CONFIGS = {kind: tiny_config(kind) for kind in ("mqt", "parcel")}


def _assert_equals_truncation(kind: str, budget: int, bucket: int) -> None:
    cfg = CONFIGS[kind]
    params = init_params(cfg, 3)
    loss, gradient = loss_and_gradient(cfg, params, bucket, jnp.int32(budget))
    exact, exact_gradient = loss_and_gradient(cfg, params, budget, jnp.int32(budget))
    close(loss, exact, rtol=1e-5)
    assert jax.tree.structure(gradient) == jax.tree.structure(exact_gradient)
    # Some gradients are zero up to rounding (keys' biases): those are measured against the whole.
    ours, theirs = ([np.asarray(a) for a in jax.tree.leaves(g)] for g in (gradient, exact_gradient))
    whole = np.sqrt(sum(np.sum(np.square(a)) for a in theirs))
    for a, b in zip(ours, theirs, strict=True):
        scale = max(np.linalg.norm(b), 1e-3 * whole)
        assert np.linalg.norm(a - b) <= 1e-5 * scale


@pytest.mark.parametrize(
    ("kind", "budget", "bucket"),
    [
        ("parcel", 70, 96),
        pytest.param("parcel", 16, 62, marks=pytest.mark.slow),
        pytest.param("mqt", 6, 32, marks=pytest.mark.slow),
    ],
)
def test_masking_equals_truncation(kind: str, budget: int, bucket: int):
    _assert_equals_truncation(kind, budget, bucket)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parcel", "mqt"])
def test_masking_equals_truncation_at_any_budget(kind: str):
    served = budgets.supported_budgets(CONFIGS[kind])

    @settings(deadline=None, max_examples=5, derandomize=True)
    @given(budget=st.sampled_from(served))
    def check(budget: int) -> None:
        _assert_equals_truncation(kind, budget, budgets.bucket_of(CONFIGS[kind], budget).size)

    check()


def test_the_other_slots_do_reach_the_loss_when_not_masked():
    cfg = CONFIGS["parcel"]
    params = init_params(cfg, 3)
    masked, _ = loss_and_gradient(cfg, params, 96, jnp.int32(70))
    unmasked, _ = loss_and_gradient(cfg, params, 96, jnp.int32(96))
    assert abs(float(masked - unmasked)) > 1e-4


def test_no_query_no_gradient_to_the_connector():
    cfg = CONFIGS["parcel"]
    _, gradient = loss_and_gradient(cfg, init_params(cfg, 3), 62, jnp.int32(16))
    assert all(np.all(np.asarray(g) == 0.0) for g in jax.tree.leaves(gradient["connector"]))


def test_anchors_are_the_means_of_their_cells():
    grid = jnp.arange(16.0).reshape(1, 16, 1)
    np.testing.assert_array_equal(pool(grid, 4)[0, :, 0], [2.5, 4.5, 10.5, 12.5])
    with pytest.raises(ValueError, match="square of a divisor of 4"):
        pool(grid, 9)
