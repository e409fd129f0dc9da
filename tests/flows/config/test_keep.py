"""Tests of `keep`: which checkpoints are deleted once all is scored.

Explain says beforehand what will be left; a deleted checkpoint is made again if a step reads it.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from flows.config.keep import KeepConfig
from flows.graph.explain import Explanation
from flows.graph.graph import graph_of
from flows.lookup.runs import end_run_record, ended_run_records
from flows.study.load import load
from infra.errors import ConfigError
from infra.store import gc
from infra.store.manifest import Manifest
from infra.store.records import PRUNED
from infra.store.store import Store
from tests.flows.graph.test_explain import fill, study, told

PREDICTIONS, BFLOAT16 = KeepConfig(transfers="predictions"), KeepConfig(transfers="bfloat16")
CAST = "keep.transfers=bfloat16"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def finish(store: Store, *failed: str, keep: KeepConfig = PREDICTIONS) -> None:
    """Notes the run of all that the store holds, by a study that keeps predictions."""
    keys = store.keys()
    config = {"name": "demo", "keep": dataclasses.asdict(keep)}
    end_run_record(store, config, "run", results=None, artifacts=keys, failed=failed)


@pytest.fixture
def cast(store: Store) -> Store:
    """A store with a study that kept casts, and let the checkpoints of its transfers go."""
    fill(store, study(CAST))
    finish(store, keep=BFLOAT16)
    gc.delete_garbage(store, older_than=0)
    return store


def by_name(store: Store, kind: str) -> dict[str, Manifest]:
    return {artifact.manifest.name: artifact.manifest for artifact in store.artifacts(kind)}


def test_checkpoints_go_when_all_is_scored_and_the_next_run_finds_everything(store: Store):
    graph = study()
    fill(store, graph)
    finish(store)
    let = {found.title for found in gc.delete_garbage(store, older_than=0) if found.sort == "files"}
    transfers = {n.name for n in graph.nodes if n.name.startswith("transfer ")}
    assert let == transfers
    assert {state for state, _ in told(store, study()).values()} == {"reused"}


def test_a_stage_that_is_scored_as_it_is_stays(store: Store):
    words = "num_seeds=1", "transfers={chartqa: {}, gqa: {zero_shot: true, path: web}}"
    graph = graph_of(load(overrides=["methods=[vanilla,parcel]", *words]))
    fill(store, graph)
    finish(store)
    let = {found.title for found in gc.delete_garbage(store, older_than=0) if found.sort == "files"}
    assert let == {n.name for n in graph.nodes if n.name.startswith("transfer ")}


def test_what_reads_one_again_has_it_made_again(store: Store):
    fill(store, study())
    finish(store)
    gc.delete_garbage(store, older_than=0)
    found = told(store, study("budgets=[64,256]"))
    made = {name: why for name, (state, why) in found.items() if state == "new"}
    parcel = {name for name in made if name.startswith("transfer parcel")}
    assert {name for name in made if not name.startswith("results")} == parcel
    assert all(re.search("not kept.* evaluate parcel", made[name]) for name in parcel)


def test_the_next_run_finds_everything_that_was_let_go_for_a_cast(cast: Store):
    checkpoints = by_name(cast, "checkpoint")
    pruned = {name for name, m in checkpoints.items() if cast.find_pruned(m.key)}
    assert pruned == {name for name in checkpoints if name.startswith("transfer ")}
    casts = by_name(cast, "cast")
    assert {m.inputs["checkpoint"].key for m in casts.values()} == {
        checkpoints[name].key for name in pruned
    }
    assert all(cast.find(m.key) for m in casts.values())
    for keep in ("all", "bfloat16"):
        found = told(cast, study(f"keep.transfers={keep}"))
        assert {state for state, _ in found.values()} == {"reused"}


def test_another_budget_is_decoded_from_the_cast_and_nothing_is_trained(cast: Store):
    before = set(cast.keys())
    found = told(cast, study("budgets=[64,256]", CAST))
    made = {name: why for name, (state, why) in found.items() if state == "new"}
    parcel = {name for name in made if name.startswith("transfer parcel")}
    assert {name for name in made if not name.startswith("results")} == parcel
    for why in (made[name] for name in parcel):
        assert re.fullmatch(r"budget 256 → 64; decoded from parameters in bfloat16, since .*", why)
    fill(cast, study("budgets=[64,256]", CAST))
    new = [cast.get(key).manifest for key in set(cast.keys()) - before]
    assert {m.kind for m in new} == {"predictions", "scores", "results"}
    casts = {m.key for m in by_name(cast, "cast").values()}
    decoded = [m for m in new if m.kind == "predictions"]
    assert len(decoded) == len(parcel)
    assert {m.inputs["checkpoint"].key for m in decoded} <= casts
    # What was decoded from either is reused, whatever is kept from now on.
    for keep in ("all", "predictions", "bfloat16"):
        found = told(cast, study("budgets=[64,256]", f"keep.transfers={keep}"))
        assert {state for state, _ in found.values()} == {"reused"}
    # A study that keeps predictions alone lets no cast go.
    finish(cast)
    gc.delete_garbage(cast, older_than=0)
    assert all(map(cast.find, casts))


def test_a_damaged_cast_is_no_cast(cast: Store):
    for manifest in by_name(cast, "cast").values():
        (path,) = cast.get(manifest.key).path.iterdir()
        path.unlink()
    found = told(cast, study("budgets=[64,256]", CAST))
    made = {name: why for name, (state, why) in found.items() if state == "new"}
    parcel = [why for name, why in made.items() if name.startswith("transfer parcel")]
    assert parcel
    assert all(re.search("not kept.* evaluate parcel", why) for why in parcel)


def test_no_training_is_repeated_for_the_sake_of_a_cast(store: Store):
    fill(store, study())
    finish(store)
    gc.delete_garbage(store, older_than=0)
    explanation = Explanation(store, study(CAST))
    assert {v.state for v in explanation.steps.values()} == {"reused"}
    assert not any(step.kind == "cast" for step in explanation.graph.steps)
    # Where a training is repeated for another reason, its parameters are kept afterwards.
    explanation = Explanation(store, study("budgets=[64,256]", CAST))
    casts = {step.name for step in explanation.graph.steps if step.kind == "cast"}
    trained = {
        step.name
        for step, verdict in explanation.steps.items()
        if step.kind == "checkpoint" and verdict.state == "new"
    }
    assert {name.replace("cast ", "transfer ") for name in casts} == trained != set()


def test_an_edit_makes_what_was_let_go_stale_and_not_new(cast: Store, edit: Any):
    edit("model/train/step.py", "jnp.maximum(", "jnp.minimum(")
    states = {name: state for name, (state, _) in told(cast, study(CAST)).items()}
    transfers = {state for name, state in states.items() if name.startswith("transfer ")}
    assert transfers == {"stale"}


def test_a_cast_is_kept_whatever_code_made_it(cast: Store, edit: Any):
    edit("model/checkpoint/cast.py", "total=len(reader.arrays)", "total=1")
    explanation = Explanation(cast, study("budgets=[64,256]", CAST))
    states = {(step.kind, v.state) for step, v in explanation.steps.items()}
    assert {state for kind, state in states if kind in ("cast", "checkpoint")} == {"reused"}


def test_a_checkpoint_without_a_cast_stays(store: Store):
    fill(store, study(CAST), but=lambda step: step.kind == "cast")
    finish(store, keep=BFLOAT16)
    (record,) = ended_run_records(store).values()
    assert record[PRUNED] == []


def test_after_a_failure_everything_stays(store: Store):
    fill(store, study())
    finish(store, "evaluate parcel: no memory")
    (record,) = ended_run_records(store).values()
    assert record[PRUNED] == []


def test_explain_tells_what_will_be_left(store: Store):
    *_, everything, _ = Explanation(store, study()).lines(KeepConfig())
    *_, scores, _ = Explanation(store, study()).lines(PREDICTIONS)
    assert "keep.transfers=all: " in everything
    assert "not counted, " in everything

    def size(line: str) -> float:
        return float(line.partition("checkpoint ")[2].partition(" MB")[0])

    graph = study()
    *_, cast, _ = Explanation(store, study(CAST)).lines(BFLOAT16)
    freed = size(everything) - size(scores)
    assert size(cast) == size(scores)
    assert float(cast.partition("cast ")[2].partition(" MB")[0]) == pytest.approx(
        freed / 2, abs=0.1
    )
    checkpoints = sum(step.kind == "checkpoint" for step in graph.steps)
    transfers = sum(node.name.startswith("transfer ") for node in graph.nodes)
    assert size(scores) / size(everything) == pytest.approx(1 - transfers / checkpoints, abs=0.05)


def test_what_is_kept_is_no_part_of_any_step():
    for keep in ("predictions", "bfloat16"):
        steps = [step for step in study(f"keep.transfers={keep}").steps if step.kind != "cast"]
        assert [step.config for step in steps] == [step.config for step in study().steps]


def test_another_word_is_one_line():
    accepted = "all, params, predictions, bfloat16"
    with pytest.raises(ConfigError, match=rf"keep\.transfers.*{accepted}"):
        graph_of(load(overrides=["keep.transfers=some"]))
