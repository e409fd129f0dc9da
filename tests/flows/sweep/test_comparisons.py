"""What sweeps compared is kept, and each look has a share of the 5 %."""

import errno
import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from flows.report.decision import decide_pair
from flows.report.paired_scores import PairedScores
from flows.sweep.comparisons import spend_error
from infra.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_each_new_look_has_a_smaller_share_and_an_old_one_keeps_its_own(store: Store):
    first = spend_error(store, "mine", ["m3 - parcel", "mqt - parcel"])
    assert first == {"m3 - parcel": 0.0125, "mqt - parcel": 0.0125}
    # A method more: the others are as they were.
    second = spend_error(store, "mine", [*first, "parcel - vanilla"])
    assert second == {**first, "parcel - vanilla": pytest.approx(0.05 / 6)}
    assert spend_error(store, "mine", ["m3 - parcel"]) == {"m3 - parcel": 0.0125}
    assert spend_error(store, "other", ["m3 - parcel"]) == {"m3 - parcel": 0.025}
    assert store.files.listing("comparisons/mine").keys() == {"1.json", "2.json"}


def test_all_shares_together_are_five_percent(store: Store):
    errors = [spend_error(store, "mine", [f"look {i}"])[f"look {i}"] for i in range(60)]
    assert sum(errors) == pytest.approx(0.05 * 60 / 61)


def test_sweeps_at_once_lose_no_entry_and_agree(store: Store):
    looks = [[f"look {i % 5}", f"look {i % 3}"] for i in range(24)]
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda look: spend_error(Store(store.uri), "mine", look), looks)]
    errors = spend_error(store, "mine", [f"look {i}" for i in range(5)])
    assert all(errors[look] == error for each in found for look, error in each.items())
    assert sum(errors.values()) < 0.05


@pytest.mark.parametrize("text", ["{", "[]", '{"looks": []}', '{"comparisons": [3]}'])
def test_a_damaged_file_has_spent_its_share(store: Store, text: str):
    spend_error(store, "mine", ["a"])
    store.files.put("comparisons/mine/1.json", text.encode())
    assert spend_error(store, "mine", ["a"]) == {"a": pytest.approx(0.05 / 6)}


def test_the_file_is_read_by_people_and_later_versions(store: Store):
    spend_error(store, "mine", ["m3 - parcel: chartqa 16, 64; 1 pretraining"])
    kept = json.loads(store.files.read("comparisons/mine/1.json"))
    assert kept == {"comparisons": ["m3 - parcel: chartqa 16, 64; 1 pretraining"]}


def test_a_store_that_may_only_be_read_says_what_it_would_be(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    def refuse(name: str, data: bytes) -> bool:
        raise OSError(errno.EROFS, "Read-only file system", name)

    spend_error(store, "mine", ["a"])
    monkeypatch.setattr(store.files, "create_if_absent", refuse)
    assert spend_error(store, "mine", ["a", "b"]) == {"a": 0.025, "b": pytest.approx(0.05 / 6)}


def budgets_tried(rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Six choices of three budgets that are alike."""
    values = rng.normal(size=24) * 0.3**0.5 + rng.normal(size=(3, 24)) * 0.7**0.5
    for chosen in ((0, 1, 2), (0,), (1,), (2,), (0, 1), (1, 2)):
        yield str(chosen), values[list(chosen)].mean(axis=0)


def methods_added(rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Five methods, one a night, each as good as the study's own."""
    own, others = rng.normal(size=24), rng.normal(size=(5, 24))
    for number, other in enumerate(others):
        yield f"method {number}", own - other


@pytest.mark.slow
@pytest.mark.parametrize("looks", [budgets_tried, methods_added])
def test_who_tries_again_errs_no_more_often(looks, store: Store):
    rng, wrong, sweeps = np.random.default_rng(4), 0, 200
    errors = [spend_error(store, "mine", [name])[name] for name, _ in looks(rng)]
    for _ in range(sweeps):
        tries = zip(looks(rng), errors, strict=True)
        wrong += any(
            decide_pair([PairedScores(values=values)], error=error).decided
            for (_, values), error in tries
        )
    assert wrong / sweeps <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / sweeps)
