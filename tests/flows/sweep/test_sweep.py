"""Tests of sweeps: what they add to a study and how far they got, known from the store alone."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.graph.explain import Explanation
from flows.graph.graph import graph_of
from flows.lookup.runs import end_run_record
from flows.report.cells import CellKey
from flows.report.decision import LEAST_SEEDS
from flows.run.retry_policy import (
    MAX_TRIES,
    failed_nodes_of_last_run,
    failures_by_node,
    hold_given_up,
    only_failed,
)
from flows.steps.step_lookup import look_up_step
from flows.study.study import StudyConfig
from flows.sweep.form_values import check_values, form_problem, sweep_of_form
from flows.sweep.sweep import Sweep, SweepRun, _compared_rows, describe_sweep
from infra.errors import ConfigError
from infra.store.store import Attempt, Store, manifest_name
from tests.flows.conftest import Done
from tests.flows.graph.test_explain import fill

SMALL = (
    "methods=[vanilla,parcel]",
    "budgets=[256]",
    "num_seeds=2",
    "transfers.refcoco.transfer=false",
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def firing(store: Store, *more: str, **values: Any) -> SweepRun:
    return sweep_of_form("demo", store, [*SMALL, *more], check_values(Sweep, values, "sweep"))


def next_of(firing: SweepRun) -> tuple[int, int] | None:
    """The transfer and pretraining seeds of the study that a firing would run."""
    explanation = next(firing.passes(), None)
    return explanation and (explanation.study.num_seeds, explanation.study.num_pretrain_seeds)


def run(store: Store, firing: SweepRun, **how: Any) -> None:
    """Makes what a firing asks for, as if every step had run."""
    for explanation in firing.passes():
        fill(store, graph_of(explanation.study), **how)


def test_what_is_added_stands_beside_the_studys_own(store: Store):
    wide = firing(store, methods=["m3", "parcel"], budgets=[16], benchmarks=["gqa"], seeds=3)
    config = wide.config
    assert config.methods == ("vanilla", "parcel", "m3")
    assert config.budgets == (256, 16)
    assert list(config.transfers) == ["chartqa", "refcoco", "msvd_qa", "gqa"]
    assert config.num_seeds == 3


def test_a_benchmark_that_was_only_prepared_is_transferred_to(store: Store):
    assert list(firing(store, benchmarks=["refcoco"]).config.views[0].rows) == [
        "chartqa",
        "refcoco",
    ]


def test_the_first_firing_makes_the_study_and_each_later_one_adds(store: Store):
    nightly = firing(store, add_seeds=1, max_seeds=4)
    seen = []
    for _ in range(4):
        seen.append(next_of(nightly))
        run(store, nightly)
    assert seen == [(2, 1), (3, 1), (4, 1), None]
    assert re.search(r"4 seeds .*max_seeds=4\b", nightly.why_nothing())


def test_missing_cells_are_filled_before_a_seed_is_added(store: Store):
    nightly = firing(store, add_seeds=1)
    run(store, nightly)
    config = next(nightly.passes()).study
    last = config.seeds[-1]
    fill(
        store,
        graph_of(config),
        but=lambda s: s.name.startswith("transfer vanilla") and s.seed == last,
    )
    # A cell of the third seed is there: it is begun, and the fourth waits.
    assert next_of(nightly) == (3, 1)
    run(store, nightly)
    assert next_of(nightly) == (4, 1)


def test_another_study_with_the_same_seeds_does_not_count(store: Store):
    run(store, firing(store, seeds=5))
    other = firing(store, "stage1.peak_lr=0.003", add_seeds=1)
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


def test_pretrainings_alone_are_added_to_zero_shot_rows(store: Store):
    words = "num_seeds=1", "transfers={gqa: {zero_shot: true, path: web}}"
    weekly = firing(store, *words, add_pretrain_seeds=1, max_pretrain_seeds=3)
    for number in (1, 2, 3):
        assert next_of(weekly) == (1, number)
        run(store, weekly)
    assert next_of(weekly) is None
    with pytest.raises(ConfigError, match=r"add_seeds .* zero_shot"):
        firing(store, *words, add_seeds=1)


def test_new_and_reused_cells_are_told_by_their_sorts(store: Store):
    run(store, firing(store))
    wide = firing(store, seeds=3, budgets=[16])
    config = next(wide.passes()).study
    first, second, third = describe_sweep(wide.explain(config), {})
    new = config.seeds[2]
    # Vanilla knows one budget.
    assert first == "sweep demo: 2 methods × 1 row × 3 seeds × budgets 256, 16: 9 cells"
    sorts = f": 2 of seed {new}, 2 of budget 16, 1 of budget 16, seed {new}"
    assert re.match(rf"4 cells .* 5 .*{sorts}$", second)
    assert third.startswith("5 steps to make: 4 transfer, 1 results; ")


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ({"seeds": 1}, ["seeds=1 adds nothing: demo has 2 already, and a sweep only adds"]),
        ({"seeds": 2}, ["seeds=2 adds nothing: demo has 2 already, and a sweep only adds"]),
        (
            {"budgets": [256], "methods": ["parcel", "vanilla"], "benchmarks": ["chartqa"]},
            [
                "methods=parcel,vanilla adds nothing: demo has all of it, and a sweep only adds",
                "benchmarks=chartqa adds nothing: demo has all of it, and a sweep only adds",
                "budgets=256 adds nothing: demo has all of it, and a sweep only adds",
            ],
        ),
        ({"seeds": 3, "budgets": [16, 256]}, []),
        ({"until_decided": True, "least_seeds": 2, "max_seeds": 2}, []),
    ],
)
def test_a_sweep_never_narrows_a_study_and_says_what_adds_nothing(
    store: Store, values: dict[str, Any], lines: list[str]
):
    sweep = firing(store, **values)
    assert list(sweep.describe_redundant_settings()) == lines
    if lines:
        assert sweep.config == sweep.study
    assert next(sweep.passes()).study.num_seeds >= 2


def test_the_command_says_what_adds_nothing(store: Store, parcel: Callable[..., Done]):
    run(store, firing(store))
    done = parcel("sweep", "demo", *SMALL, "--seeds", "1", "--store", store.uri)
    assert (done.code, done.err) == (0, "")
    less, nothing = done.out.splitlines()
    assert re.match("seeds=1 .*demo has 2 ", less)
    assert re.match("nothing to run: .* 2 seeds", nothing)


def test_fewer_pretrainings_than_the_studys_add_nothing(store: Store):
    sweep = firing(store, "num_pretrain_seeds=2", pretrain_seeds=1)
    assert sweep.config == sweep.study
    (line,) = sweep.describe_redundant_settings()
    assert re.match("pretrain_seeds=1 .*demo has 2 ", line)


def numbers(store: Store, sweep: SweepRun, score: Any) -> list[int]:
    seen = []
    for config in (explanation.study for explanation in sweep.passes()):
        seen.append(config.num_seeds)
        fill(store, graph_of(config), score=score)
    return seen


@pytest.mark.slow
def test_seeds_are_added_until_it_is_settled(store: Store, tmp_path: Path):
    sweep = firing(store, until_decided=True, least_seeds=2, max_seeds=9)

    def score(key: CellKey) -> float:
        noise = np.random.default_rng([key.seed, len(key.method)]).normal()
        return 50 + noise + (2.5 if key.method == "parcel" else 0.0)

    seen = numbers(store, sweep, score)
    assert seen == list(range(2, seen[-1] + 1))
    assert 2 < seen[-1] < 9
    assert next_of(sweep) is None
    assert f"after {seen[-1]} seeds, settled, but for " in sweep.why_nothing()
    # With more seeds than that, made by somebody else or under way when it was killed: the same.
    other = Store(tmp_path / "other")
    fill(other, graph_of(firing(other, seeds=8).config), score=score)
    again = firing(other, until_decided=True, least_seeds=2, max_seeds=9)
    numbers(other, again, score)
    assert again.why_nothing() == sweep.why_nothing()


@pytest.mark.slow
def test_what_cannot_be_settled_ends_at_the_bound(store: Store):
    sweep = firing(store, until_decided=True, least_seeds=2, max_seeds=4)
    same = lambda key: float(key.seed % 7)  # noqa: E731
    assert numbers(store, sweep, same) == [2, 3, 4]
    assert sweep.why_nothing().endswith("after 4 seeds, open")


def test_the_seeds_below_the_least_number_are_made_at_once(store: Store):
    assert next_of(firing(store, until_decided=True)) == (LEAST_SEEDS, 1)
    assert next_of(firing(store, until_decided=True, least_seeds=5)) == (5, 1)
    assert next_of(firing(store, "num_seeds=20", until_decided=True)) == (20, 1)


def clear_lead(key: CellKey) -> float:
    """Scores of which those of parcel are the highest, by more than seeds differ."""
    lead = {"parcel": 8.0, "m3": 4.0}.get(key.method, 0.0)
    return 50 + lead + np.random.default_rng([key.seed, len(key.method)]).normal()


def error_of(line: str) -> list[str]:
    return re.findall(r"at most ([\d.]+%)", line)


@pytest.mark.slow
def test_each_new_comparison_has_a_smaller_share_of_the_error(store: Store):
    sweep = firing(store, until_decided=True, least_seeds=5)
    fill(store, graph_of(firing(store, seeds=8).config), score=clear_lead)
    # Nothing was compared before, and looking again is no other comparison.
    first = sweep.why_nothing()
    assert error_of(first) == ["2.50%"]
    assert re.search(
        r"settled, but for what happens in fewer than \d+% of seeds, for seeds like these: "
        r"1 benchmark, \d seeds, 1 pretraining; wrong ",
        first,
    )
    assert firing(store, until_decided=True, least_seeds=5).why_nothing() == first
    # A method that is added the next night; the first comparison stays as it was.
    fill(store, graph_of(firing(store, methods=["m3"], seeds=8).config), score=clear_lead)
    compare = ["parcel", "vanilla", "m3"]
    wide = firing(store, methods=["m3"], until_decided=True, least_seeds=5, compare=compare)
    assert error_of(wide.why_nothing()) == ["2.50%", "0.83%"]
    # Methods change places: that is the same comparison.
    turned = firing(store, until_decided=True, least_seeds=5, compare=["vanilla", "parcel"])
    assert error_of(turned.why_nothing()) == ["2.50%"]


@pytest.mark.slow
def test_fewer_seeds_than_the_least_spend_nothing(store: Store):
    fill(store, graph_of(firing(store, seeds=4).config), score=clear_lead)
    sweep = firing(store, until_decided=True, least_seeds=5)
    (decision,) = sweep.decisions(sweep.explain(firing(store, seeds=4).config)).values()
    assert (decision.decided, decision.num_seeds) == (False, 4)
    assert store.files.listing("comparisons/demo") == {}


@pytest.mark.slow
def test_stale_scores_and_those_of_another_platform_do_not_count(store: Store, edit: Any):
    config = firing(store, seeds=6).config
    graph = graph_of(config)
    fill(store, graph, score=clear_lead)
    sweep = firing(store, until_decided=True, least_seeds=5)

    def num_seeds(store: Store) -> int:
        opened = dataclasses.replace(sweep, store=store)
        (decision,) = opened.decisions(opened.explain(config)).values()
        return decision.num_seeds

    assert num_seeds(store) == 5  # It is decided then.
    # Another accelerator trained one seed of a method: the table leaves its scores out.
    (odd,) = [k for k in graph.cells if (k.method, k.seed) == ("vanilla", config.seeds[0])]
    before = sweep.explain(config)
    artifact = before.steps[before.graph.cells[odd].inputs["predictions"]].artifact
    assert artifact is not None
    environment = artifact.manifest.environment
    hardware = {**environment["hardware"], "accelerator": "another"}
    changed = dataclasses.replace(
        artifact.manifest, environment={**environment, "hardware": hardware}
    )
    store.files.put(manifest_name(artifact.key), changed.to_json().encode())
    again = Store(store.uri)
    opened = dataclasses.replace(sweep, store=again)
    scores, left_out = opened._scores_of_table(opened.explain(config))
    assert left_out == {odd}
    assert len(scores) == len(graph.cells) - 1
    assert opened.why_nothing().endswith("without 1 score that the table leaves out")
    assert "after 5 seeds, settled" in opened.why_nothing()
    # Changed code: no score counts until it is made again.
    edit("model/eval/metrics/relaxed_accuracy.py", "def ", "def _")
    assert num_seeds(again) == 0


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"benchmarks": ["chartqb"]}, "benchmarks must be in the registry, got chartqb"),
        ({"methods": ["parcl"]}, "methods.0 must be one of vanilla, .*got 'parcl'"),
        ({"seeds": 5, "max_seeds": 4}, "seeds must be at most max_seeds=4, got 5"),
        ({"until_decided": True, "add_seeds": 1}, "until_decided .* without add_seeds"),
        ({"compare": ["m3", "mqt"]}, "compare .* must come with until_decided"),
        ({"until_decided": True, "compare": ["m3", "mqt"]}, "compare must name methods"),
        ({"until_decided": True, "max_seeds": 9}, "max_seeds must be at least least_seeds=17"),
        ({"least_seeds": 5}, "least_seeds .* must come with until_decided"),
        ({"add_seed": 1}, "add_seed: no such key; did you mean add_seeds?"),
    ],
)
def test_a_wrong_sweep_is_told_in_a_line(store: Store, values: dict[str, Any], told: str):
    with pytest.raises(ConfigError, match=told) as refused:
        firing(store, **values)
    assert "\n" not in str(refused.value)


def test_a_form_is_checked_before_there_is_a_run(store: Store):
    form = {"study": "demo", "store": store.uri, "overrides": []}
    assert form_problem(form) is None
    assert form_problem({**form, "add": {"add_seeds": 1}, "when": {}}) is None
    for wrong, told in (
        ({"overrides": ["num_seed=2"]}, "demo: num_seed: no such key; did you mean num_seeds?"),
        ({"study": "nobody"}, "study must be demo, a YAML file"),
        ({"add": {}, "when": {"start": "20:00"}}, "when: start and end (--from, --to) must be"),
    ):
        assert str(form_problem({**form, **wrong})).startswith(told)


def test_a_study_that_ran_is_known_by_its_name(store: Store):
    import dataclasses

    from flows.lookup.runs import end_run_record
    from flows.study.load import load

    ran = dataclasses.asdict(load(overrides=["name=mine", "num_seeds=2"]))
    end_run_record(store, ran, "run", results=None, artifacts=(), failed=["x: y"])
    config: StudyConfig = sweep_of_form("mine", store, ["budgets=[256]"], Sweep(seeds=4)).config
    assert (config.name, config.num_seeds, config.budgets) == ("mine", 4, (256,))


def fail(store: Store, explanation: Explanation, name: str) -> None:
    """Tries the steps of a node whose inputs are there, in vain."""
    (node,) = [node for node in explanation.graph.nodes if node.name == name]
    for step in node.steps:
        if key := explanation.steps[step].key:
            inputs = {r: explanation.steps[read].artifact for r, read in step.inputs.items()}
            there = {role: artifact for role, artifact in inputs.items() if artifact}
            with store.lock(key):
                attempt = Attempt(store, look_up_step(store, step, there, frozenset()).recipe)
            assert attempt.step.key == key


@pytest.mark.slow
def test_a_cell_that_always_fails_holds_up_no_other(store: Store):
    nightly = firing(store, add_seeds=1, max_seeds=4)
    seed = nightly.config.seeds[0]
    broken = f"transfer vanilla chartqa seed={seed}"
    seen = []
    for config in (next(nightly.passes()).study for _ in range(3)):
        before = nightly.explain(config)
        told = list(describe_sweep(before, failures_by_node(store, before)))
        seen.append((config.num_seeds, "1 transfer failed before and is tried again" in told))
        assert not hold_given_up(store)(before)
        fill(store, graph_of(config), but=lambda step: step.name == broken)
        fail(store, nightly.explain(config), broken)
    assert seen == [(2, False), (3, True), (4, True)]
    assert next_of(nightly) is None
    why = rf"4 seeds .*max_seeds=4\b.* 1 transfer .* {MAX_TRIES} times .*`parcel run --failed`: "
    assert re.search(why + re.escape(broken), nightly.why_nothing())
    # More seeds: it stays out of the way, and its table with it.
    wide = firing(store, add_seeds=1, max_seeds=5)
    config = next(wide.passes()).study
    assert config.num_seeds == 5
    held = hold_given_up(store)(wide.explain(config))
    assert broken in {node.name for node in held}
    assert {node.name for node in held} <= {broken, "results demo"}


@pytest.mark.slow
def test_a_seed_that_was_given_up_keeps_no_later_seed_from_the_decision(store: Store):
    sweep = firing(store, until_decided=True, least_seeds=2, max_seeds=9)
    seed = sweep.config.seeds[0]
    broken = f"transfer vanilla chartqa seed={seed}"
    config = next(sweep.passes()).study

    def score(key: CellKey) -> float:
        noise = np.random.default_rng([key.seed, len(key.method)]).normal()
        return 50 + noise + (4.0 if key.method == "parcel" else 0.0)

    for tries in range(1, MAX_TRIES + 1):
        # Until it is given up, every firing begins with it.
        assert next_of(sweep) == (2, 1)
        fill(store, graph_of(config), but=lambda step: step.name == broken, score=score)
        fail(store, sweep.explain(config), broken)
        # The first seed is a gap until it is given up; then it is left out, and the second counts.
        (decision,) = sweep.decisions(sweep.explain(config)).values()
        assert decision.num_seeds == int(tries == MAX_TRIES)
    seen = []
    for config in (explanation.study for explanation in sweep.passes()):
        seen.append(config.num_seeds)
        fill(store, graph_of(config), but=lambda step: step.name == broken, score=score)
    assert seen == list(range(3, seen[-1] + 1))
    assert 3 < seen[-1] < 9
    assert f"after {seen[-1] - 1} seeds, settled, but for " in sweep.why_nothing()
    why = rf" 1 transfer .* {MAX_TRIES} times .*`parcel run --failed`: {re.escape(broken)}"
    assert re.search(why, sweep.why_nothing())


def test_a_try_that_was_killed_is_no_failure(store: Store):
    nightly = firing(store, add_seeds=1)
    config = next(nightly.passes()).study
    broken = f"transfer vanilla chartqa seed={config.seeds[0]}"
    fill(store, graph_of(config), but=lambda step: step.name == broken)
    explanation = nightly.explain(config)
    (step,) = [step for step in explanation.steps if step.name == broken]
    inputs = {r: explanation.steps[read].artifact for r, read in step.inputs.items()}
    there = {role: artifact for role, artifact in inputs.items() if artifact}
    Attempt(store, look_up_step(store, step, there, frozenset()).recipe)
    assert failures_by_node(store, explanation) == {}
    assert next_of(nightly) == (2, 1)  # It comes first.


def test_steps_that_were_given_up_are_tried_as_failed_ones(store: Store):
    import dataclasses

    config = firing(store).config
    words = {"artifacts": (), "failed": ["b: no"], "given_up": ["a", "b"]}
    end_run_record(store, dataclasses.asdict(config), "run", results=None, **words)
    assert failed_nodes_of_last_run(store, config.name) == ("b", "a")


def test_failed_steps_alone_are_begun(store: Store):
    import dataclasses

    config = firing(store).config
    broken = f"transfer vanilla chartqa seed={config.seeds[0]}"
    with pytest.raises(ConfigError, match=r"--failed .*'demo"):
        failed_nodes_of_last_run(store, config.name)
    values = dataclasses.asdict(config)
    end_run_record(
        store, values, "run", results=None, artifacts=(), failed=[f"{broken}: no: memory"]
    )
    assert failed_nodes_of_last_run(store, config.name) == (broken,)
    explanation = Explanation(store, graph_of(config))
    rule, line = only_failed(store, config.name)
    assert rule is not None
    begun = set(explanation.graph.nodes) - rule(explanation).keys()
    kinds = {node.name.split()[0] for node in begun}
    assert {node.name for node in begun if node.name.startswith("transfer")} == {broken}
    assert kinds == {"corpus", "prepare", "tokenizer", "mask", "stage1", "intermediary", "transfer"}
    assert re.fullmatch(rf"1 step .*demo.*: {re.escape(broken)}", line)
    form = {"study": "demo", "store": store.uri, "overrides": [*SMALL], "failed": True}
    assert form_problem(form) is None
    assert str(form_problem({**form, "overrides": ["name=other"]})).startswith("--failed needs")


STAGE2 = "stage2={num_seeds: 1}"


def test_a_budget_beyond_the_studys_images_is_stage_2s(store: Store):
    config = firing(store, STAGE2, budgets=[64, 512]).config
    assert [view.budgets for view in config.views] == [(256, 64), (1024, 512)]
    assert firing(store, STAGE2, budgets=[64]).config.views[1].budgets == (1024, 256)
    with pytest.raises(ConfigError, match=r"no method serves \[512\]"):
        _ = firing(store, budgets=[512]).config


@pytest.mark.slow
def test_both_resolutions_are_told_and_seeds_are_added_to_the_first(store: Store):
    study = firing(store, STAGE2)
    (line, *_) = describe_sweep(study.explain(study.config), {})
    assert line == (
        "sweep demo: 2 methods × 1 row × 2 seeds × budgets 256 and 1 row at 448 px × 1 seed × "
        "budgets 1024: 6 cells"
    )
    run(store, study)
    wide = next(firing(store, STAGE2, add_seeds=1).passes()).study
    assert [view.num_seeds for view in wide.views] == [3, 1]


@pytest.mark.parametrize(
    ("stage2", "expected"),
    [("{num_seeds: 1}", ["chartqa"]), ("{}", ["chartqa", "chartqa@448"])],
)
def test_a_decision_counts_the_rows_that_have_every_seed(
    store: Store, stage2: str, expected: list[str]
):
    config = firing(store, f"stage2={stage2}").config
    scored = graph_of(config).cells.keys()
    seeds, rows = _compared_rows(config.views[0], scored, "parcel", "vanilla")
    assert seeds == [*config.seeds]
    assert [row.name for row in rows] == expected
    assert len({row.training for row in rows}) == len(rows)


def test_a_gap_ends_the_seeds_that_count_and_a_cell_given_up_leaves_one_out(store: Store):
    config = firing(store, "num_seeds=4").config
    cells = graph_of(config).cells
    lost = {key for key in cells if key.seed == config.seeds[1] and key.method == "vanilla"}
    scored = cells.keys() - lost

    def places(**how: Any) -> list[int]:
        seeds, _ = _compared_rows(config.views[0], scored, "parcel", "vanilla", **how)
        return [config.seeds.index(seed) for seed in seeds]

    assert places() == [0]
    assert places(left_out=lost) == [0, 2, 3]


def test_seeds_of_two_pretrainings_count_together(store: Store):
    config = firing(store, "num_pretrain_seeds=2").config
    cells = graph_of(config).cells
    last = config.seeds[-1]  # The second seed of the second pretraining.
    seeds, _ = _compared_rows(
        config.views[0], {k for k in cells if k.seed != last}, "parcel", "vanilla"
    )
    assert [config.seeds.index(seed) for seed in seeds] == [0, 2]
