"""The trace of a cell or a table: a tree for the terminal, each artifact once."""

from pathlib import Path

import pytest

from flows.lineage.trace import trace_lineage
from flows.lookup.runs import end_run_record
from flows.lookup.target import LookupTarget, find_target
from flows.steps.accepted import accept_artifact
from infra.errors import ConfigError
from infra.store.store import Artifact, Store
from tests.flows.pages.test_lineage import make


def lines(store: Store, artifact: Artifact) -> list[str]:
    what = LookupTarget(name=artifact.key, artifacts=(artifact,))
    return list(trace_lineage(store, what, samples=0))


def test_tree_tells_shared_ancestors_once(tmp_path: Path):
    store = Store(tmp_path)
    corpus = make(store, "corpus", "corpus")
    left = make(store, "files", "left", raw=corpus)
    right = make(store, "files", "right", raw=corpus)
    top = make(store, "results", "top", a=left, b=right)

    def told(artifact: Artifact) -> str:
        manifest = artifact.manifest
        return f"{manifest.name} {artifact.key} sha256:{manifest.content[:12]} (records 7)"

    assert lines(store, top) == [
        told(top),
        f"├── a: {told(left)}",
        f"│   └── raw: {told(corpus)}",
        f"└── b: {told(right)}",
        "    └── raw: corpus (shown above)",
    ]


def test_what_was_kept_is_marked(tmp_path: Path):
    store = Store(tmp_path)
    dataset = make(store, "files", "prepare web", raw=make(store, "corpus", "corpus"))
    accept_artifact(store, dataset, "0123456789abcdef" * 4)
    marked = [line for line in lines(store, dataset) if "† kept although" in line]
    assert len(marked) == 1
    assert "prepare web" in marked[0]


def table(store: Store, seeds: int) -> Artifact:
    """A table of two budgets, in whose history everything is shared, as in a study's."""
    web = make(store, "files", "web")
    words = make(store, "tokenizer", "tokenizer", web=web)
    first = make(store, "checkpoint", "stage1", web=web, words=words)
    cells = {}
    for seed in range(seeds):
        tuned = make(store, "checkpoint", f"transfer {seed}", web=web, words=words, init=first)
        for budget in (16, 64):
            answered = make(
                store, "predictions", f"evaluate {seed} {budget}", checkpoint=tuned, data=web
            )
            scored = make(store, "scores", f"score {seed} {budget}", predictions=answered, data=web)
            cells[f"chartqa/parcel/{budget}/{seed}"] = scored
    results = make(store, "results", "results", **cells)
    end_run_record(
        store, {"name": "demo"}, "run", results=results.key, artifacts=[results.key], failed=[]
    )
    return results


def test_a_trace_reads_each_manifest_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table(Store(tmp_path), seeds=20)
    store, read = Store(tmp_path), list[str]()
    asked = store.files.read
    monkeypatch.setattr(store.files, "read", lambda name: (read.append(name), asked(name))[1])
    told = list(trace_lineage(store, find_target(store, "demo/chartqa/parcel/64"), samples=0))
    manifests = [name for name in read if name.startswith("manifests/")]
    assert len(manifests) == len(set(manifests)) == 1 + 20 * 3 + 3  # Of 104.
    assert sum("(shown above)" not in line for line in told[1:]) == 20 * 3 + 3
    told = list(trace_lineage(store, find_target(store, "demo"), samples=0))
    manifests = [name for name in read if name.startswith("manifests/")]
    assert len(manifests) == len(set(manifests)) == len(store.keys())


def test_cells_seeds_artifacts_and_runs_have_names(tmp_path: Path):
    store = Store(tmp_path)
    results = table(store, seeds=2)
    assert [a.key for a in find_target(store, "demo").artifacts] == [results.key]
    assert [a.key for a in find_target(store, results.key[:12]).artifacts] == [results.key]
    assert find_target(store, "demo/chartqa/parcel/64").seeds == (0, 1)
    (one,) = find_target(store, "demo/chartqa/parcel/64/1").artifacts
    assert one.manifest.name == "score 1 64"
    with pytest.raises(ConfigError, match=r"got 'chartqa/parcel/17'.*chartqa/parcel/16"):
        find_target(store, "demo/chartqa/parcel/17")
    with pytest.raises(ConfigError, match=r"RUN .*matches: none"):
        find_target(store, "nobody")
