"""Kinds: what readers ask of an artifact is stated by its kind, and by nobody else."""

import shutil
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from flows.config.keep import KeepConfig
from flows.graph.explain import Explanation
from flows.graph.graph import graph_of
from flows.graph.nodes import GraphNode, StepJob, StudyGraph
from flows.lineage.export import export_lineage
from flows.lineage.sample_trace import trace_sample
from flows.lineage.trace import trace_lineage
from flows.lookup.target import LookupTarget
from flows.pages.lineage_page import page
from flows.pages.record_cards import Cards
from flows.steps import worker
from flows.steps.kind import Kind, Step, StepContext
from flows.steps.labels import Labels
from flows.steps.registry import KINDS
from flows.steps.step_lookup import look_up_step
from flows.study.load import load
from infra.progress import Progress
from infra.references import load_reference
from infra.store.store import Artifact, Store
from model.eval.predictions_file import write_predictions
from pipelines.records.dataset import OMISSIONS, Dataset
from tests.flows.lineage.conftest import made
from tests.flows.steps.test_registry import WIDE
from tests.model.tiny_data import color_record, write_dataset

_NUMBERS = ("answers", "scores", "guesses")
_DEFAULT = Kind(name="", make=lambda work: iter(()))


def test_artifacts_with_a_number_for_each_record_have_a_lineage_down_to_the_record():
    for kind in KINDS.values():
        assert (kind.holds in _NUMBERS) == bool(kind.items), kind.name
        if kind.items:
            assert kind.sample != _DEFAULT.sample, kind.name


def test_the_function_of_a_content_digest_exists():
    references = {kind.content for kind in KINDS.values() if kind.content}
    assert references
    assert all(callable(load_reference(reference)) for reference in references)


def test_whatever_reads_records_says_how_it_rests_on_them():
    readers = {
        step.kind
        for step in graph_of(load(overrides=WIDE)).steps
        if any(KINDS[read.kind].holds == "dataset" for read in step.inputs.values())
    }
    assert {"tokenizer", "checkpoint", "predictions", "scores", "chance"} <= readers
    for name in readers:
        kind = KINDS[name]
        assert kind.holds in ("dataset", "table") or kind.sample != _DEFAULT.sample, name


def test_every_kind_names_its_files(toy: Store):
    assert all(kind.files for kind in KINDS.values())
    assert "checksum" in KINDS["checkpoint"].files["params.json"]
    assert OMISSIONS in KINDS["dataset"].files  # Which few datasets have.
    for kind in ("scores", "results", "mask_codec"):
        for artifact in toy.artifacts(kind):
            for name in artifact.manifest.files:
                assert any(fnmatch(name, pattern) for pattern in KINDS[kind].files), name


def draw(work: StepContext) -> Iterator[Progress]:
    write_dataset(work.scratch / "made", {"color": [color_record(i) for i in range(3)]})
    shutil.copytree(work.scratch / "made", work.out, dirs_exist_ok=True)
    yield Progress(done=1, total=1)


def judge(work: StepContext) -> Iterator[Progress]:
    rows = [
        {"id": r.id, "prefix": r.prefix, "prediction": f"a verdict on {r.id}", "answers": []}
        | {"source": r.source, "source_sha256": r.source_sha256}
        for r in Dataset(work.places["data"]).records()
    ]
    write_predictions(work.out, rows)
    work.counts["num"] = len(rows)
    yield Progress(done=1, total=1)


def test_a_kind_is_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Kinds of which nothing but these objects knows are explained, traced, shown and exported."""
    drawings = Kind(name="drawings", make=draw, holds="dataset")
    verdicts = Kind(
        name="verdicts",
        make=judge,
        holds="answers",
        items="data",
        headline=lambda config, counts: f"{counts['num']} verdicts",
        sample="judged by it",
    )
    for kind in (drawings, verdicts):
        monkeypatch.setitem(KINDS, kind.name, kind)
    store = Store(tmp_path / "store")
    data = Step(kind="drawings", labels=Labels(action="draw"))
    step = Step(kind="verdicts", labels=Labels(action="judge"), inputs={"data": data})
    nodes = [GraphNode(labels=one.labels, jobs=(StepJob(steps=(one,)),)) for one in (data, step)]
    graph = StudyGraph(nodes=tuple(nodes), cells={}, results=None)
    assert [line.split()[:2] for line in Explanation(store, graph).lines(KeepConfig())][:2] == [
        ["new", "draw"],
        ["new", "judge"],
    ]
    made_of: dict[Step, Artifact] = {}
    for one in graph.steps:
        inputs = {role: made_of[read] for role, read in one.inputs.items()}
        recipe = look_up_step(store, one, inputs, frozenset()).recipe
        *_, end = worker.make(store.uri, [recipe], {})
        assert end == worker.StepOutcome(name=one.name)
        made_of[one] = store.get(recipe.key)
    states = [verdict.state for verdict in Explanation(store, graph).steps.values()]
    assert states == ["reused", "reused"]
    artifact, name = made_of[step], "color/001"
    assert KINDS["verdicts"].headline(None, artifact.manifest.counts) == "3 verdicts"

    history = LookupTarget(name=artifact.key, artifacts=(artifact,))
    lines = [*trace_lineage(store, history, samples=3)]
    assert any(f"· {name} 'a verdict on {name}'" in line for line in lines)
    assert any(f"· {name} ← color.png" in line for line in lines)
    results = made(store, "results", "results", {"x/parcel/16/5": artifact})
    table = LookupTarget(name="x", artifacts=(results,))
    assert trace_sample(store, table, name).cells == {"judged by it": ("x/parcel/16/5",)}
    text = page(store, artifact, reused=False, cards=Cards(store).samples(artifact, 3))
    assert f"a verdict on {name}" in text
    assert "| num | 3 |" in text
    described = [file for file, _ in export_lineage(store, table, "croissant")]
    assert described == [f"{made_of[data].key}.json"]
