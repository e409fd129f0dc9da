"""The ordinal head: what it learns, its order, and its bytes."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.router.config import RouterConfig
from model.router.head import choose, cross_entropy, fit, least_enough

BUDGETS = (16, 64, 256)


def planted(num: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Features of which one says how much is needed, and the labels that it gives."""
    features = np.random.default_rng(seed).normal(size=(num, 7)) * 30 + 5
    labels = np.digitize(features[:, 2], [0.0, 20.0])
    return features, labels, [f"picture {i // 2}" for i in range(num)]


def test_it_learns_what_features_say_and_not_what_they_do_not():
    features, labels, sources = planted(400)
    head = fit(features, labels, sources, BUDGETS)
    fresh, wanted, _ = planted(200, seed=1)
    assert (choose(head.need(fresh), 0.5) == wanted).mean() > 0.9
    shuffled = np.random.default_rng(2).permutation(labels)
    blind = fit(features, shuffled, sources, BUDGETS)
    assert head.left_out < 0.6 * blind.left_out
    # Nothing to learn: the strongest decay, and no better than how often each label comes.
    assert blind.decay == 1.0
    assert cross_entropy(blind, fresh, wanted) > cross_entropy(head, fresh, wanted)


@pytest.mark.slow
@given(seed=st.integers(0, 99), threshold=st.floats(0.01, 0.99))
@settings(deadline=None, max_examples=5)
def test_a_larger_budget_is_never_less_likely_to_be_enough(seed: int, threshold: float):
    features, labels, sources = planted(60, seed)
    head = fit(features, labels, sources, BUDGETS)
    need = head.need(features)
    assert (np.diff(need, axis=1) <= 0).all()
    chosen = choose(need, threshold)
    assert (choose(need, threshold / 2) >= chosen).all()
    assert set(choose(need, 0.0)) == {2}
    assert set(choose(need, 1.0)) == {0}


def test_where_all_items_are_alike_it_says_so_of_every_input():
    features, _, sources = planted(40)
    head = fit(features, np.zeros(40, int), sources, BUDGETS)
    assert set(choose(head.need(planted(50, seed=3)[0]), 0.5)) == {0}


def test_a_label_is_the_least_budget_within_epsilon_of_the_largest():
    losses = np.array([[1.0, 0.5, 0.5], [0.54, 0.9, 0.5], [2.0, 1.9, 0.1], [0.2, 0.3, 0.9]])
    np.testing.assert_array_equal(least_enough(losses, 0.05), [1, 0, 2, 0])
    np.testing.assert_array_equal(least_enough(losses, 0.0), [1, 2, 2, 0])


def test_the_same_items_give_the_same_bytes(tmp_path: Path):
    features, labels, sources = planted(50)
    heads = [fit(features, labels, sources, BUDGETS) for _ in "ab"]
    for name, head in zip("ab", heads, strict=True):
        head.save(tmp_path / f"{name}.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    read = type(heads[0]).load(tmp_path / "a.npz")
    assert read.budgets == BUDGETS
    assert read.left_out == heads[0].left_out
    np.testing.assert_array_equal(read.need(features), heads[0].need(features))


def test_items_about_one_picture_are_too_few():
    features, labels, _ = planted(10)
    with pytest.raises(ValueError, match="several pictures, got 1; hold back more"):
        fit(features, labels, ["one"] * 10, BUDGETS)


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"threshold must be a probability .* got 1\.5"):
        RouterConfig(threshold=1.5)
    with pytest.raises(ValueError, match=r"epsilon must be at least 0 .* got -1"):
        RouterConfig(epsilon=-1.0)
