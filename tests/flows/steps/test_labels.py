"""Labels of steps: names are written from them, and nothing is read out of a name."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import pytest

from flows.graph.eta import TimeEstimates
from flows.graph.explain import Explanation
from flows.graph.graph import graph_of
from flows.pages.history_drawing import draw
from flows.pages.lineage_page import page
from flows.run.run_log import opening_line
from flows.steps.labels import Labels, labels_of, labels_of_step_name, labels_of_user_step
from flows.study.load import load
from flows.sweep.form_values import check_values, sweep_of_form
from flows.sweep.sweep import Sweep, describe_sweep
from infra.store.store import Artifact, Store
from tests.flows.graph.test_explain import fill

E2E = Path(__file__).parents[2] / "e2e"
SWEPT = ("methods=[vanilla,parcel]", "budgets=[256]", "num_seeds=2", "num_pretrain_seeds=2")


@pytest.mark.parametrize(
    ("config", "overrides"),
    [
        (None, ["num_pretrain_seeds=2", "keep.transfers=bfloat16"]),
        (None, ["transfers.refcoco.zero_shot=true", "num_seeds=1"]),
        (str(E2E / "stages.yaml"), []),
        (str(E2E / "backbones.yaml"), []),
    ],
)
def test_a_manifest_without_labels_is_read_by_its_name(config: str | None, overrides: list[str]):
    graph = graph_of(load(config, overrides))
    for each in (*graph.nodes, *graph.steps):
        assert labels_of_step_name(each.name) == each.labels, each.name
    assert len({node.name for node in graph.nodes}) == len(graph.nodes)


@pytest.mark.parametrize(
    "name", ["", "  ", "@448", "a\nb", "transfer parcel chartqa seed=x", "x @"]
)
def test_any_other_name_has_labels_too(name: str):
    assert labels_of_step_name(name).but_for_seeds().seed is None


def test_a_users_step_has_its_own_name_and_the_action_of_its_class():
    labels = labels_of_user_step("lab.steps:Dedup", "dedup web seed=5")
    assert (labels.name, labels.action, labels.seed) == ("dedup web seed=5", "Dedup", None)


def test_labels_are_recorded_in_the_manifest(tmp_path: Path):
    store, graph = Store(tmp_path / "store"), graph_of(load(overrides=SWEPT), "train")
    fill(store, graph)
    made = {artifact.manifest.name: artifact.manifest for artifact in store.artifacts()}
    assert {step.name: step.labels for step in graph.steps} == {
        name: labels_of(manifest) for name, manifest in made.items()
    }
    stage = made["intermediary parcel pretrain=1"]
    recorded = {"action": "intermediary", "method": "parcel", "pretraining": 1}
    assert stage.environment["labels"] == recorded
    for damaged in ({"action": "stage9", "speed": 9}, {"method": "m3"}, ["stage9"], "stage9", {}):
        stage.environment["labels"] = damaged
        assert labels_of(stage).to_json() == recorded


def what_is_seen(store: Store) -> dict[str, Any]:
    """What is estimated, drawn, told and swept of a study whose steps are in a store."""
    study = load(overrides=SWEPT)
    graph = graph_of(study)
    fill(store, graph, but=lambda step: step.labels.action == "results")
    estimates, view = TimeEstimates(), store.snapshot()
    for artifact in sorted(view.artifacts(), key=lambda one: one.key):
        seconds = float(int(artifact.key[-4:], 16))
        manifest = dataclasses.replace(artifact.manifest, seconds=seconds)
        estimates.learn(Artifact(store.files, manifest))
    more = graph_of(load(overrides=(*SWEPT, "seed=9")))
    cells = [a for a in view.artifacts("scores") if labels_of(a.manifest).method == "parcel"]
    boxes = {box.label for box in draw(store, cells).boxes if " × " in box.label}
    markdown = page(store, cells[0], reused=False)
    sweep = sweep_of_form("demo", store, SWEPT, check_values(Sweep, {"add_seeds": 1}, "sweep"))
    swept = next(sweep.passes())
    explanation = Explanation(store, more)
    return {
        "estimates": [estimates.seconds(step) for step in more.steps],
        "boxes": boxes,
        "mermaid": markdown.count(" x "),
        "begins": opening_line(more, set(), lambda step: False),
        "sweep": [*describe_sweep(explanation, {})],
        "seeds": (swept.study.num_seeds, swept.study.num_pretrain_seeds),
    }


def test_other_names_change_no_estimate_drawing_or_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = what_is_seen(Store(tmp_path / "before"))
    assert len(set(before["estimates"])) > 5
    assert len(before["boxes"]) > 2
    assert before["seeds"] == (3, 2)
    digest = lambda labels: hashlib.sha256(repr(labels).encode()).hexdigest()  # noqa: E731
    monkeypatch.setattr(Labels, "name", property(lambda labels: f"№ {digest(labels)}"))
    assert what_is_seen(Store(tmp_path / "after")) == before
