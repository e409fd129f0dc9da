"""The lineage graph: who was made from whom, and what no longer is what it was."""

from pathlib import Path

from infra.store.graph import ancestry, edges, verify
from infra.store.manifest import Step
from infra.store.store import Artifact, Attempt, Store


def make(store: Store, kind: str, **inputs: Artifact) -> Artifact:
    step = Step(
        kind=kind, name=kind, inputs={role: found.as_input for role, found in inputs.items()}
    )
    attempt = Attempt(store, step)
    (attempt.path / "a.txt").write_text(kind)
    return attempt.commit({})


def diamond(store: Store) -> tuple[Artifact, ...]:
    raw = make(store, "raw")
    left, right = make(store, "left", raw=raw), make(store, "right", raw=raw)
    return raw, left, right, make(store, "top", a=left, b=right)


def test_ancestry_reaches_the_raw_data_by_every_way(tmp_path: Path):
    store = Store(tmp_path)
    raw, left, right, top = diamond(store)
    tree = ancestry(store, top.key)
    assert [(node.role, node.artifact.key) for node in tree.inputs] == [
        ("a", left.key),
        ("b", right.key),
    ]
    assert [node.inputs[0].artifact.key for node in tree.inputs] == [raw.key, raw.key]


def test_edges_are_told_once(tmp_path: Path):
    store = Store(tmp_path)
    *_, top = diamond(store)
    told = sorted((a.name, role, b.name) for a, role, b in edges(store, top.key))
    assert told == [
        ("left", "a", "top"),
        ("raw", "raw", "left"),
        ("raw", "raw", "right"),
        ("right", "b", "top"),
    ]


def test_verify_names_changed_bytes_missing_files_and_lost_inputs(tmp_path: Path):
    store = Store(tmp_path)
    raw, left, right, top = diamond(store)
    assert [p for a in store.artifacts() for p in verify(store, a)] == []
    (left.path / "a.txt").write_text("LEFT")
    (right.path / "a.txt").unlink()
    (store.artifact_root(raw.key) / "manifest.json").unlink()
    problems = {(p.key, p.path): p.reason for a in (left, right, top) for p in verify(store, a)}
    assert problems == {
        (left.key, "a.txt"): "bytes differ from the manifest",
        (left.key, "input raw"): f"{raw.key} is missing",
        (right.key, "a.txt"): "missing",
        (right.key, "input raw"): f"{raw.key} is missing",
    }
