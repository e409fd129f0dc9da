"""What a sweep adds to a study, and where it stands: decided from the store alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.report.cells import CellKey
from flows.study.asked import checked, problem, sweep_asked
from flows.study.config import StudyConfig
from flows.study.graph import graph_of
from flows.study.load import ConfigError
from flows.study.sweep import Firing, Sweep, told_before
from infra.store.store import Store
from tests.flows.study.test_explain import fill

SMALL = (
    "methods=[vanilla,parcel]", "budgets=[256]", "num_seeds=2", "transfers.refcoco.transfer=false",
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def firing(store: Store, *more: str, **values: Any) -> Firing:
    return sweep_asked("demo", store, [*SMALL, *more], checked(Sweep, values, "sweep"))


def next_of(firing: Firing) -> tuple[int, int] | None:
    """The transfer and pretraining seeds of the study that a firing would run."""
    config = next(firing.passes(), None)
    return config and (config.num_seeds, config.num_pretrain_seeds)


def run(store: Store, firing: Firing, **how: Any) -> None:
    """Makes what a firing asks for, as if every step had run."""
    for config in firing.passes():
        fill(store, graph_of(config), **how)


def test_what_is_added_stands_beside_the_studys_own(store: Store):
    wide = firing(store, methods=["m3", "parcel"], budgets=[16], benchmarks=["gqa"], seeds=3)
    config = wide.config
    assert config.methods == ("vanilla", "parcel", "m3")
    assert config.budgets == (256, 16)
    assert list(config.transfers) == ["chartqa", "refcoco", "msvd_qa", "gqa"]
    assert config.num_seeds == 3


def test_a_benchmark_that_was_only_prepared_is_transferred_to(store: Store):
    assert list(firing(store, benchmarks=["refcoco"]).config.rows) == ["chartqa", "refcoco"]


def test_the_first_firing_makes_the_study_and_each_later_one_adds(store: Store):
    nightly = firing(store, add_seeds=1, max_seeds=4)
    seen = []
    for _ in range(4):
        seen.append(next_of(nightly))
        run(store, nightly)
    assert seen == [(2, 1), (3, 1), (4, 1), None]
    assert nightly.why_nothing() == (
        "nothing to run: every cell of 4 seeds is there, and max_seeds=4 is reached"
    )


def test_missing_cells_are_filled_before_a_seed_is_added(store: Store):
    nightly = firing(store, add_seeds=1)
    run(store, nightly)
    config = next(nightly.passes())
    last = config.seeds[-1]
    fill(store, graph_of(config), but=lambda s: s.name.startswith("transfer vanilla")
         and s.seed == last)  # fmt: skip
    # A cell of the third seed is there: it is begun, and the fourth waits.
    assert next_of(nightly) == (3, 1)
    run(store, nightly)
    assert next_of(nightly) == (4, 1)


def test_another_study_with_the_same_seeds_does_not_count(store: Store):
    run(store, firing(store, seeds=5))
    other = firing(store, "stage1.peak_lr=0.001", add_seeds=1)
    assert next_of(other) == (2, 1)


def test_a_method_that_comes_later_gets_every_seed_that_was_begun(store: Store):
    run(store, firing(store, seeds=4))
    assert next_of(firing(store, methods=["m3"], add_seeds=1)) == (4, 1)


def test_pretrainings_are_added_likewise(store: Store):
    weekly = firing(store, add_pretrain_seeds=1, max_pretrain_seeds=2)
    run(store, weekly)
    assert next_of(weekly) == (2, 2)
    run(store, weekly)
    assert next_of(weekly) is None
    assert "2 seeds of 2 pretrainings" in weekly.why_nothing()


def test_new_and_reused_cells_are_told_by_their_sorts(store: Store):
    run(store, firing(store))
    wide = firing(store, seeds=3, budgets=[16])
    config = next(wide.passes())
    first, second, third = told_before(wide.explain(config), config)
    new = config.seeds[2]
    # Vanilla knows one budget.
    assert first == "sweep demo: 2 methods × 1 rows × 3 seeds × budgets 256, 16: 9 cells"
    assert second == (
        f"4 cells are there, 5 are new: 2 of seed {new}, 2 of budget 16, 1 of budget 16, seed {new}"
    )
    assert third.startswith("5 steps to make: 4 transfer, 1 results; ")


def numbers(store: Store, sweep: Firing, score: Any) -> list[int]:
    seen = []
    for config in sweep.passes():
        seen.append(config.num_seeds)
        fill(store, graph_of(config), score=score)
    return seen


def test_seeds_are_added_until_it_is_settled(store: Store, tmp_path: Path):
    sweep = firing(store, until_decided=True, max_seeds=9)

    def score(key: CellKey) -> float:
        noise = np.random.default_rng([key.seed, len(key.method)]).normal()
        return 50 + noise + (2.5 if key.method == "parcel" else 0.0)

    seen = numbers(store, sweep, score)
    assert seen == list(range(2, seen[-1] + 1))
    assert 2 < seen[-1] < 9
    assert next_of(sweep) is None
    assert sweep.why_nothing().endswith(f"after {seen[-1]} seeds, settled")
    # With more seeds than that, made by somebody else or under way when it was killed: the same.
    other = Store(tmp_path / "other")
    fill(other, graph_of(firing(other, seeds=8).config), score=score)
    again = firing(other, until_decided=True, max_seeds=9)
    numbers(other, again, score)
    assert again.why_nothing() == sweep.why_nothing()


def test_what_cannot_be_settled_ends_at_the_bound(store: Store):
    sweep = firing(store, until_decided=True, max_seeds=4)
    same = lambda key: float(key.seed % 7)  # noqa: E731
    assert numbers(store, sweep, same) == [2, 3, 4]
    assert sweep.why_nothing().endswith("after 4 seeds, open")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"benchmarks": ["chartqb"]}, "benchmarks must be of the registry, got chartqb"),
        ({"methods": ["parcl"]}, "methods.0: Input should be"),
        ({"seeds": 5, "max_seeds": 4}, "seeds must be at most max_seeds=4, got 5"),
        ({"until_decided": True, "add_seeds": 1}, "until_decided .* without add_seeds"),
        ({"compare": ["m3", "mqt"]}, "compare .* must come with until_decided"),
        ({"until_decided": True, "compare": ["m3", "mqt"]}, "compare must name methods"),
        ({"add_seed": 1}, "add_seed: no such key; did you mean add_seeds?"),
    ],
)
def test_a_wrong_sweep_is_told_in_a_line(store: Store, values: dict[str, Any], told: str):
    with pytest.raises(ConfigError, match=told) as refused:
        firing(store, **values)
    assert "\n" not in str(refused.value)


def test_a_form_is_checked_before_there_is_a_run(store: Store):
    form = {"study": "demo", "store": store.uri, "overrides": []}
    assert problem(form) is None
    assert problem({**form, "add": {"add_seeds": 1}, "when": {}}) is None
    for wrong, told in (
        ({"overrides": ["num_seed=2"]}, "demo: num_seed: no such key; did you mean num_seeds?"),
        ({"study": "nobody"}, "study must be demo, a YAML file"),
        ({"add": {}, "when": {"start": "20:00"}}, "when: start and end (--from, --to) must be"),
    ):
        assert str(problem({**form, **wrong})).startswith(told)


def test_a_study_that_ran_is_known_by_its_name(store: Store):
    import dataclasses

    from flows.study.load import load
    from flows.study.runs import note_run

    ran = dataclasses.asdict(load(overrides=["name=mine", "num_seeds=2"]))
    note_run(store, ran, None, artifacts=(), flow_run_id="", failed=["x: y"])
    config: StudyConfig = sweep_asked("mine", store, ["budgets=[256]"], Sweep(seeds=4)).config
    assert (config.name, config.num_seeds, config.budgets) == ("mine", 4, (256,))
