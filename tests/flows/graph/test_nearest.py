"""Tests of nearest: the work that it takes to explain a sweep, and that the answer is the same."""

import cProfile
import dataclasses
import pstats
from pathlib import Path

import pytest

from flows.config.keep import KeepConfig
from flows.graph.explain import Explanation
from flows.graph.graph import StudyGraph, graph_of
from flows.graph.nearest import SEED, NearestArtifacts
from flows.steps.kind import Step
from flows.steps.labels import Labels
from flows.steps.step_lookup import look_up_step
from flows.study.load import load
from infra.store.manifest import Manifest
from infra.store.store import Artifact, Store
from tests.gcs.server import GCS


def sweep(seeds: int, *overrides: str) -> StudyGraph:
    words = ("methods=[parcel]", "budgets=[256]", f"num_seeds={seeds}", *overrides)
    return graph_of(load(overrides=words), "evaluate")


def publish(store: Store, graph: StudyGraph) -> dict[Step, Artifact]:
    """Publishes a manifest without files for every step of a graph."""
    artifacts: dict[Step, Artifact] = {}
    for number, step in enumerate(graph.steps):
        inputs = {role: artifacts[read] for role, read in step.inputs.items()}
        recipe = look_up_step(store, step, inputs, frozenset()).recipe
        manifest = Manifest(
            kind=recipe.kind,
            name=recipe.name,
            key=recipe.key,
            inputs=dict(recipe.inputs),
            config=recipe.config,
            seed=recipe.seed,
            libraries=dict(recipe.libraries),
            code=recipe.code,
            source="",
            content=f"{number:064x}",
            folder="attempts/1",
            files={},
            counts={},
            attempts=[],
            environment={},
            started="2026-11-26T00:00:00+00:00",
            seconds=1.0,
        )
        artifacts[step] = store.publish(manifest)
    return artifacts


def num_calls(store: Store, graph: StudyGraph) -> int:
    """Returns the number of functions that are called to explain a graph."""
    profile = cProfile.Profile()
    profile.runcall(Explanation, store, graph)
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


def test_a_new_step_takes_as_little_work_beside_many_artifacts_as_beside_few(tmp_path: Path):
    few, many = Store(tmp_path / "few"), Store(tmp_path / "many")
    publish(few, sweep(5))
    publish(many, sweep(40))
    new = {seeds: sweep(seeds, "seed=5") for seeds in (5, 40)}
    steps = {seeds: len(graph.steps) for seeds, graph in new.items()}
    Explanation(few, new[5])  # Digests of code and versions of libraries are computed once.
    first, last = num_calls(few, new[5]), num_calls(many, new[40])
    # Reading an artifact and judging a step take some hundred calls each. Comparing every step
    # with every artifact would take thousands more for each.
    assert (last - first) / (steps[40] - steps[5]) < 1000


def test_the_nearest_is_the_one_with_the_fewest_differences(tmp_path: Path):
    store = Store(tmp_path / "store")
    made = sweep(3)
    publish(store, made)
    transfers = [step for step in made.steps if step.name.startswith("transfer parcel chartqa ")]
    nearest = NearestArtifacts(store.artifacts("checkpoint"))
    for step in transfers:
        assert nearest.differences(step, {}) == []
    more = [s for s in sweep(3, "seed=5").steps if s.name.startswith("transfer parcel chartqa ")]
    for step in more:
        # One memory for all new seeds, but each with its own number.
        ((path, was, now),) = nearest.differences(step, {})
        assert (path, now) == (SEED, step.seed)
        assert was in {transfer.seed for transfer in transfers}
    # A seed that another artifact has is no difference, although the name of the step is new.
    renamed = Step(
        kind="checkpoint",
        labels=Labels(action="other"),
        config=more[0].config,
        seed=transfers[1].seed,
    )
    assert nearest.differences(renamed, {}) == []


def test_what_is_quite_another_thing_is_not_compared(tmp_path: Path):
    store, made = Store(tmp_path / "store"), sweep(1)
    publish(store, made)
    nearest = NearestArtifacts(store.artifacts("dataset"))
    known = next(s for s in made.steps if s.kind == "dataset" and "chartqa" in s.name)
    alike = dataclasses.replace(known.config, split="other")
    (difference,) = (
        nearest.differences(Step(kind="dataset", labels=Labels(action="new"), config=alike), {})
        or ()
    )
    assert difference[0] == "split"
    # Of a benchmark that there was not yet, no number of another one is told as what it was.
    other = dataclasses.replace(alike, reader="nlvr", path="nlvr")
    assert (
        nearest.differences(Step(kind="dataset", labels=Labels(action="new"), config=other), {})
        is None
    )


@pytest.mark.parametrize("known", [False, True])
def test_inputs_count_once_they_are_known(tmp_path: Path, known: bool):
    store = Store(tmp_path / "store")
    made = sweep(1)
    artifacts = publish(store, made)
    evaluation = next(step for step in made.steps if step.kind == "predictions")
    other = next(s for s in made.steps if s.kind == "checkpoint")
    inputs = {
        role: artifacts[other if role == "checkpoint" else read]
        for role, read in evaluation.inputs.items()
    }
    nearest = NearestArtifacts(store.artifacts("predictions"))
    paths = [path for path, *_ in nearest.differences(evaluation, inputs if known else {})]
    assert paths == (["input checkpoint"] if known else [])


def test_explaining_lists_a_bucket_once(gcs: GCS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path))
    store = Store("gs://testing/store")
    publish(store, sweep(1))
    gcs.clear()
    explanation = Explanation(store.snapshot(), sweep(1, "seed=5"))
    assert {verdict.state for verdict in explanation.steps.values()} >= {"new", "reused"}
    assert [*explanation.lines(KeepConfig())]
    # One page holds all names of this store. What is compared, estimated and costed comes from it.
    requests = gcs.requests()
    assert requests["list"]["requests"] == 1
    # Manifests are read once, and then come from this machine.
    num_manifests = len(store.keys())
    assert requests["media"]["requests"] == num_manifests
    gcs.clear()
    Explanation(store.snapshot(), sweep(1, "seed=5"))
    assert gcs.requests()["list"]["requests"] == 1
    assert "media" not in gcs.requests()
