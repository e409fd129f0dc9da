"""TokenFLEX's pooling against torch's rule, and ID-Selection's choice against its equations."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from model.connector.id_selection import choose
from model.connector.tokenflex import adaptive_pool
from tests.model.tiny_models import tiny_config

DRAW = np.random.default_rng(2)


@pytest.mark.parametrize(("grid", "side"), [(16, 12), (5, 3), (6, 3), (7, 7)])
def test_adaptive_pooling(grid: int, side: int):
    features = DRAW.normal(size=(2, grid * grid, 3)).astype(np.float32)
    square = features.reshape(2, grid, grid, 3)
    cells = [(i * grid // side, -(-(i + 1) * grid // side)) for i in range(side)]
    expected = [square[:, a:b, c:d].mean(axis=(1, 2)) for a, b in cells for c, d in cells]
    pooled = adaptive_pool(jnp.asarray(features), side * side)
    assert_allclose(pooled, np.stack(expected, axis=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alike", [0, 0.5, 0.8, 0.95])
def test_choice_follows_the_equations(alike: float):
    features = DRAW.normal(size=(3, 25, 8)).astype(np.float32)
    features /= np.linalg.norm(features, axis=-1, keepdims=True)
    shared = np.asarray([0, 1, 0, 0, 0, 0, 0, 0], np.float32)
    features = np.sqrt(1 - alike) * features + np.sqrt(alike) * shared
    unit = features / np.linalg.norm(features, axis=-1, keepdims=True)
    for image, chosen in zip(unit, np.asarray(choose(jnp.asarray(features), 9)), strict=True):
        cosine = image @ image.T
        scores = cosine.mean(axis=1)
        scores = (scores - scores.min()) / (scores.max() - scores.min())
        expected: list[int] = []
        for _ in range(9):
            rest = [i for i in range(25) if i not in expected]
            best = max(rest, key=lambda i: scores[i])
            expected.append(best)
            scores = scores - np.exp(-20 * (1 - cosine[best]) ** 2) * abs(scores[best])
        assert_array_equal(chosen, expected)


def test_a_copy_of_what_is_chosen_is_not_the_next():
    features = DRAW.normal(size=(1, 6, 16)).astype(np.float32)
    features[:, 3:] = features[:, :1]
    first, second = np.asarray(choose(jnp.asarray(features), 2))[0]
    assert (first in (0, 3, 4, 5)) != (second in (0, 3, 4, 5))


def test_budgets():
    assert tiny_config("tokenflex").connector.routing.budgets(16) == (16, 64, 144, 256)
    assert tiny_config("id_selection").connector.routing.budgets(16)[:2] == (2, 4)
