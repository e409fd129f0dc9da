"""Tests of `keep`: which checkpoints are deleted once all is scored.

Explain says beforehand what will be left; a deleted checkpoint is made again if a step reads it.
"""

from pathlib import Path

import pytest

from flows.config.disk_use import KeepConfig
from flows.config.load import load
from flows.lineage.runs import end_run_record, ended_run_records
from flows.study.explain import Explanation
from flows.study.graph import graph_of
from infra.errors import ConfigError
from infra.store import gc
from infra.store.records import PRUNED
from infra.store.store import Store
from tests.flows.study.test_explain import fill, study, told

PREDICTIONS = KeepConfig(transfers="predictions")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def finish(store: Store, *failed: str) -> None:
    """Notes the run of all that the store holds, by a study that keeps predictions."""
    keys = store.keys()
    config = {"name": "s", "keep": {"transfers": "predictions"}}
    end_run_record(store, config, "run", results=None, artifacts=keys, failed=failed)


def test_checkpoints_go_when_all_is_scored_and_the_next_run_finds_everything(store: Store):
    graph = study()
    fill(store, graph)
    finish(store)
    let = {found.title for found in gc.delete_garbage(store, older_than=0) if found.sort == "files"}
    transfers = {n.name for n in graph.nodes if n.name.startswith("transfer ")}
    assert let == transfers
    assert {state for state, _ in told(store, study()).values()} == {"reused"}


def test_what_reads_one_again_has_it_made_again(store: Store):
    fill(store, study())
    finish(store)
    gc.delete_garbage(store, older_than=0)
    found = told(store, study("budgets=[64,256]"))
    made = {name: why for name, (state, why) in found.items() if state == "new"}
    parcel = {name for name in made if name.startswith("transfer parcel")}
    assert {name for name in made if not name.startswith("results")} == parcel
    assert all("its files were not kept, and evaluate parcel" in made[name] for name in parcel)


def test_after_a_failure_everything_stays(store: Store):
    fill(store, study())
    finish(store, "evaluate parcel: no memory")
    (record,) = ended_run_records(store).values()
    assert record[PRUNED] == []


def test_explain_tells_what_will_be_left(store: Store):
    *_, everything, _ = Explanation(store, study()).lines(KeepConfig())
    *_, scores, _ = Explanation(store, study()).lines(PREDICTIONS)
    assert "keep.transfers=all: " in everything
    assert "not counted, because their size is not known yet: " in everything

    def size(line: str) -> float:
        return float(line.partition("checkpoint ")[2].partition(" MB")[0])

    graph = study()
    checkpoints = sum(step.kind == "checkpoint" for step in graph.steps)
    transfers = sum(node.name.startswith("transfer ") for node in graph.nodes)
    assert size(scores) / size(everything) == pytest.approx(1 - transfers / checkpoints, abs=0.05)


def test_what_is_kept_is_no_part_of_any_step():
    kept = study("keep.transfers=predictions")
    assert [step.config for step in kept.steps] == [step.config for step in study().steps]


def test_another_word_is_one_line():
    with pytest.raises(ConfigError, match=r"keep\.transfers.*'all', 'params' or 'predictions'"):
        graph_of(load(overrides=["keep.transfers=some"]))
