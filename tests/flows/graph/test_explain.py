"""Tests of explain: which steps would run and why, known from the store before any step runs."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.config.keep import KeepConfig
from flows.graph.explain import Explanation
from flows.graph.graph import graph_of
from flows.graph.nodes import StudyGraph
from flows.report.cells import CellKey
from flows.steps import registry
from flows.steps.kind import Step
from flows.steps.registry import full_config, typed_config
from flows.steps.step_lookup import device_seconds, look_up_step
from flows.study.load import load
from infra.errors import ConfigError
from infra.source_code import checkout
from infra.store.digest import identity_json
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Attempt, Store, manifest_name
from model import files
from model.eval.items_file import write_items
from parcel.cli.accept_stale import accept_stale


def study(*overrides: str) -> StudyGraph:
    return graph_of(load(overrides=["methods=[vanilla,parcel]", "budgets=[256]", *overrides]))


def fill(
    store: Store,
    graph: StudyGraph,
    *,
    seconds: float = 0.0,
    devices: Callable[[Step], int] = lambda _: 1,
    but: Callable[[Step], bool] = lambda _: False,
    score: Callable[[CellKey], float] = lambda _: 50.0,
) -> None:
    """Commits an artifact for every step, as if its function had run; some steps did not."""
    keys = {step: key for key, step in graph.cells.items()}
    made: dict[Step, Artifact] = {}
    source = store.save_source(checkout().files)
    for step in graph.steps:
        inputs = {role: made[read] for role, read in step.inputs.items() if read in made}
        if but(step) or len(inputs) < len(step.inputs):
            continue
        found = look_up_step(store, step, inputs, frozenset(), source=source)
        if found.artifact is None:
            attempt = Attempt(store, found.recipe)
            (attempt.path / "file").write_text(found.recipe.identity)
            attempt._clock -= seconds
            attempt.devices = devices(step)
            if step in keys:
                value = {"score": score(keys[step]), "metric": "vqa"}
                attempt.counts = {"score": value["score"]}
                (attempt.path / files.SCORE).write_text(json.dumps(value))
                write_items(attempt.path, [])
            found = dataclasses.replace(found, artifact=attempt.commit({}))
        made[step] = found.artifact  # type: ignore[assignment]


def told(store: Store, graph: StudyGraph) -> dict[str, tuple[str, str]]:
    explanation = Explanation(store, graph)
    return {
        node.name: (verdict.state, "; ".join(verdict.why))
        for node in explanation.graph.nodes
        for verdict in [explanation.of_node(node)]
    }


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_an_empty_store_has_nothing_and_a_full_one_everything(store: Store):
    states = told(store, study())
    assert {state for state, _ in states.values()} == {"new"}
    assert states["corpus"][1] == "the first of its kind"
    fill(store, study())
    assert {state for state, _ in told(store, study()).values()} == {"reused"}


def test_a_changed_value_is_told_by_its_key_in_the_config(store: Store):
    fill(store, study())
    states = told(store, study("intermediary.peak_lr=0.004", "stage1.b2=0.9"))
    assert states["stage1 vanilla"] == ("new", "stage1.b2 0.99 → 0.9")
    state, why = states["intermediary parcel"]
    assert state == "new"
    before = load().intermediary.peak_lr
    assert why == f"intermediary.peak_lr {before} → 0.004; stage1 vanilla is new"
    assert states["tokenizer"][0] == "reused"
    assert states["results demo"][1].endswith("and 9 more are new")


def forget_births(store: Store, kind: str) -> None:
    """Rewrites manifests as if all fields at their birth values had been added since."""
    for artifact in [*store.artifacts(kind)]:
        config = typed_config(kind, artifact.manifest.config)
        older = dataclasses.replace(artifact.manifest, config=json.loads(identity_json(config)))
        store.files.put(manifest_name(artifact.key), older.to_json().encode())


def test_a_manifest_gives_its_key_also_where_it_is_older_than_fields(store: Store):
    fill(store, study())
    keys = set(store.keys())
    for kind in registry.KINDS:
        forget_births(store, kind)
    again = Store(store.state)
    found = [artifact.manifest for kind in registry.KINDS for artifact in again.artifacts(kind)]
    assert {manifest.key for manifest in found} == keys
    for manifest in found:
        recipe = Recipe(
            kind=manifest.kind,
            name=manifest.name,
            inputs=manifest.inputs,
            config=typed_config(manifest.kind, manifest.config),
            seed=manifest.seed,
            libraries=manifest.libraries,
            code=manifest.code,
            source=manifest.source,
        )
        assert recipe.key == manifest.key
    stage1 = next(manifest for manifest in found if manifest.name.startswith("stage1"))
    assert "dropout" not in stage1.config["train"]
    assert full_config(stage1)["train"]["dropout"] == 0.0


def test_a_manifest_holds_the_values_that_its_key_leaves_out(store: Store):
    fill(store, study())
    stage1 = next(a for a in store.artifacts("checkpoint") if a.manifest.name.startswith("stage1"))
    assert stage1.manifest.config["train"]["dropout"] == 0.0
    assert stage1.manifest.config["watch"] is None


def test_no_difference_is_claimed_to_a_manifest_that_is_older_than_a_field(store: Store):
    fill(store, study())
    forget_births(store, "checkpoint")
    states = told(Store(store.state), study("stage1.b2=0.9"))
    assert states["stage1 vanilla"] == ("new", "stage1.b2 0.99 → 0.9")


def test_one_more_seed_leaves_the_others_as_they_are(store: Store):
    fill(store, study())
    states = told(store, study("num_seeds=4"))
    new = {name: why for name, (state, why) in states.items() if state == "new"}
    assert len(new) == 2 * 2 + 1
    assert all(name.startswith(("transfer ", "results ")) for name in new)
    seeds = study("num_seeds=4").cells
    added = {key.seed for key in seeds} - {key.seed for key in study().cells}
    assert all(f"→ {seed}" in why for seed in added for name, why in new.items() if "seed" in name)


def test_where_a_step_runs_does_not_matter(store: Store):
    fill(store, study())
    moved = study(
        "compute.cpus_per_cell=2",
        "prepare.num_workers=1",
        "stage1.save_steps=7",
        "stage1.sample_steps=5",
        "transfers.chartqa.train.sample_steps=3",
        "model.remat=full",
        "model.scan_layers=true",
        "model.loss_chunk=8",
    )
    assert {state for state, _ in told(store, moved).values()} == {"reused"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "old", "new", "stale", "names"),
    [
        (
            "model/train/step.py", "jnp.maximum(", "jnp.minimum(",
            {"stage1", "intermediary", "transfer"}, "model.train.step.loss_weights",
        ),
        (
            "model/eval/metrics/miou.py", "np.", "numpy.",
            {"transfer", "chance"}, "model.eval.metrics.miou",
        ),
        (
            "pipelines/sources/segmentation/refcoco.py", "def read_refcoco(", "def read_(",
            {"prepare"}, "pipelines.sources.segmentation.refcoco.read_refcoco",
        ),
        (
            "flows/report/retention.py",
            "100 *",
            "99 *",
            {"results"},
            "flows.report.retention.paired_retention",
        ),
        ("model/analysis/flops.py", "def ", "def _", set(), ""),
        ("infra/store/store.py", "def find", "def found", set(), ""),
        ("model/train/step.py", '"""The training step', '"""A step', set(), ""),
    ],
)  # fmt: skip
def test_changed_code_is_stale_and_names_the_function(
    store: Store, edit: Any, path: str, old: str, new: str, stale: set[str], names: str
):
    fill(store, study())
    edit(path, old, new)
    states = told(store, study())
    found = {name: why for name, (state, why) in states.items() if state == "stale"}
    assert {name.split()[0] for name in found} == stale
    assert all(names in why and " changed since " in why for why in found.values()), found
    if path.endswith("refcoco.py"):
        assert set(found) == {"prepare refcoco/train", "prepare refcoco/eval"}
        assert states["transfer parcel refcoco seed=" + next(
            name.split("seed=")[1] for name in states if name.startswith("transfer parcel refcoco")
        )][0] == "follows"  # fmt: skip
    assert {state for state, _ in states.values()} <= {"reused", "follows", "stale"}


def test_much_stale_work_is_refused_and_little_is_not(store: Store, edit: Any):
    fill(store, study(), seconds=1000)
    edit("pipelines/sources/segmentation/refcoco.py", "def read_refcoco(", "def read_(")
    explanation = Explanation(store, study())
    # Two datasets, and all that reads them: their vocabulary, and everything after it.
    with pytest.raises(ConfigError) as refused:
        explanation.check(1.0, ())
    assert "compute.rebuild_limit=1: pipelines.sources.segmentation.refcoco.read_refcoco, " in str(
        refused.value
    )
    assert "--rebuild STEP" in str(refused.value)
    assert "\n" not in str(refused.value)
    explanation.check(24.0, ())
    explanation.check(1.0, ("prepare refcoco/*",))
    with pytest.raises(ConfigError, match=r"--rebuild .*'nothing'"):
        explanation.check(1.0, ("nothing",))


def test_a_stage_of_many_chips_is_dear_whatever_its_job_asked_for(store: Store, edit: Any):
    launched = (
        "compute.launcher=ray --topology 8x8x4 --accelerator TPU-V4",
        "compute.ray_address=http://head:8265",
        "compute.processes_per_stage=64",
        "compute.gpus_per_stage=4",
        "stage1.batch_size=64",
    )
    graph = study(*launched)
    fill(
        store,
        graph,
        seconds=40,
        devices=lambda step: 256 if step.name.startswith("stage1") else 1,
    )
    edit("model/train/step.py", "jnp.maximum(", "jnp.minimum(")
    explanation = Explanation(store, graph)
    with pytest.raises(ConfigError, match=r" 3\.\d device-hours, .*limit=1"):
        explanation.check(1.0, ())
    explanation.check(1.0, ("stage1 *",))


def test_manifests_without_a_counted_cost_have_the_devices_that_were_asked_for(store: Store):
    fill(store, study(), seconds=10, devices=lambda _: 8)
    artifact = next(store.artifacts("checkpoint"))
    assert device_seconds(artifact) == pytest.approx(80, rel=0.1)
    older = {k: v for k, v in artifact.manifest.environment.items() if k != "device_seconds"}
    older_manifest = dataclasses.replace(artifact.manifest, environment=older, seconds=3.0)
    assert device_seconds(Artifact(store.files, older_manifest)) == 24.0
    del older["devices"]
    assert device_seconds(Artifact(store.files, older_manifest)) == 3.0


def test_what_would_be_made_is_estimated_from_the_like(store: Store):
    empty = list(Explanation(store, study()).lines(KeepConfig()))[-1]
    assert empty.startswith("making ")
    assert "nothing like them" in empty
    # Every step took 100 s, a transfer on 8 devices; one more seed is four transfers more.
    fill(
        store,
        study(),
        seconds=100,
        devices=lambda step: 8 if step.name.startswith("transfer") else 1,
        but=lambda step: step.kind == "results",
    )
    line = list(Explanation(store, study("num_seeds=4")).lines(KeepConfig()))[-1]
    # 4 x (800 + 100 + 100) device-seconds, and the table, of whose kind there is none; 20 and 5
    # minutes are the four transfers with their predictions and scores one by one, and one of them.
    assert re.match(r"making 5 steps .* 1\.1 device-hours, in 5 min 0.*, 20 min.* 1 of them ", line)
    fill(store, study())
    done = list(Explanation(store, study()).lines(KeepConfig()))
    assert not any(line.startswith("making ") for line in done)


@pytest.mark.slow
def test_an_accepted_artifact_is_kept_and_its_cells_say_so(store: Store, edit: Any):
    fill(store, study())
    edit("model/train/step.py", "jnp.maximum(", "jnp.minimum(")

    def keep(name: str) -> list[str]:
        return list(accept_stale(store, Explanation(store, study()), name))

    lines = keep("stage1 *")
    assert len(lines) == 1
    assert "stage1 vanilla" in lines[0]
    assert told(store, study())["stage1 vanilla"][0] == "accepted"
    assert told(store, study())["intermediary parcel"][0] == "stale"
    assert len(keep("intermediary *")) == 2
    assert len(keep("transfer *")) == 2 * 2 * 3
    states = told(store, study())
    assert {state for name, (state, _) in states.items() if name.startswith("transfer")} == {
        "accepted"
    }
    # The table is another one: it says which cells rest on what was kept.
    assert states["results demo"][0] == "new"
    with pytest.raises(ConfigError, match="is not stale"):
        keep("stage1 *")
    with pytest.raises(ConfigError, match="STEP must be the name"):
        keep("stage9")


@pytest.mark.slow
def test_what_a_node_hides_is_kept_by_the_nodes_name(store: Store, edit: Any):
    fill(store, study())
    edit("model/eval/metrics/miou.py", "np.", "numpy.")
    assert told(store, study())["transfer parcel refcoco seed=56703"][0] == "stale"
    kept = list(accept_stale(store, Explanation(store, study()), "transfer parcel *"))
    assert all("(score parcel " in line for line in kept)
    assert told(store, study())["transfer parcel refcoco seed=56703"][0] == "accepted"
    assert told(store, study())["transfer vanilla refcoco seed=56703"][0] == "stale"


def test_a_new_step_beside_stale_ones_does_not_hide_what_they_cost(store: Store, edit: Any):
    fill(store, study(), seconds=3600)
    edit("model/train/step.py", "jnp.maximum(", "jnp.minimum(")
    wider = study("budgets=[64,256]")
    assert told(store, wider)["transfer parcel chartqa seed=56703"][0] == "stale"
    with pytest.raises(ConfigError, match=r"model\.train\.step\.loss_weights changed"):
        Explanation(store, wider).check(1.0, ())
    Explanation(store, wider).check(0.0, ("*",))
