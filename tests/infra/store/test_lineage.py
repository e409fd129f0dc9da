"""The lineage graph: who was made from whom, and what no longer is what it was."""

from pathlib import Path

from infra.store.lineage import StoreProblem, lineage_edges, verify_artifact, walk_lineage
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Attempt, Store, manifest_name


def make(store: Store, kind: str, content: str | None = None, **inputs: Artifact) -> Artifact:
    step = Recipe(
        kind=kind, name=kind, inputs={role: found.as_input for role, found in inputs.items()}
    )
    attempt = Attempt(store, step)
    (attempt.path / "a.txt").write_text(kind)
    attempt.content = content
    return attempt.commit({})


def problems_of(store: Store) -> list[StoreProblem]:
    every = store.keys()
    return [problem for key in every for problem in verify_artifact(store, key)]


def diamond(store: Store) -> tuple[Artifact, ...]:
    raw = make(store, "raw")
    left, right = make(store, "left", raw=raw), make(store, "right", raw=raw)
    return raw, left, right, make(store, "top", a=left, b=right)


def test_history_reaches_the_raw_data_by_every_way_and_enters_it_once(tmp_path: Path):
    store = Store(tmp_path)
    raw, left, right, top = diamond(store)
    below = make(store, "table", data=top, raw=raw)
    visits = [(v.depth, v.role, v.artifact.key) for v in walk_lineage(store, below.key)]
    assert visits == [
        (0, "", below.key),
        (1, "data", top.key),
        (2, "a", left.key),
        (3, "raw", raw.key),
        (2, "b", right.key),
        (3, "raw", raw.key),
        (1, "raw", raw.key),
    ]
    assert [v.is_again for v in walk_lineage(store, below.key)] == [False] * 5 + [True] * 2
    assert [v.is_last for v in walk_lineage(store, top.key)] == [True, False, True, True, True]


def test_edges_are_told_once(tmp_path: Path):
    store = Store(tmp_path)
    *_, top = diamond(store)
    told = sorted((a.name, role, b.name) for a, role, b in lineage_edges(store, top.key))
    assert told == [
        ("left", "a", "top"),
        ("raw", "raw", "left"),
        ("raw", "raw", "right"),
        ("right", "b", "top"),
    ]


def test_verify_names_changed_bytes_missing_files_and_lost_inputs(tmp_path: Path):
    store = Store(tmp_path)
    raw, left, right, _ = diamond(store)
    assert [p for p in problems_of(store)] == []
    (left.path / "a.txt").write_text("LEFT")
    (right.path / "a.txt").unlink()
    (store.state / manifest_name(raw.key)).unlink()
    problems = {(p.key, p.path): p.reason for p in problems_of(store)}
    assert problems == {
        (left.key, "a.txt"): "bytes differ from the manifest",
        (left.key, "input raw"): f"{raw.key} is missing",
        (right.key, "a.txt"): "missing",
        (right.key, "input raw"): f"{raw.key} is missing",
    }


def test_history_of_shared_inputs_is_as_large_as_its_edges(tmp_path: Path):
    store = Store(tmp_path)
    below = make(store, "raw")
    for letter in "abcdefghijklmnop":  # As a tree, 2^16 nodes.
        below = make(store, f"step_{letter}", left=below, right=below)
    assert len(list(walk_lineage(store, below.key))) == 1 + 2 * 16


def test_verify_computes_a_stated_content_anew(tmp_path: Path):
    store = Store(tmp_path)
    made = make(store, "checkpoint", content="checkpoint, in short")

    def logical(folder: Path) -> str:
        return (folder / "a.txt").read_text() + ", in short"

    assert list(verify_artifact(store, made.key, {"checkpoint": logical})) == []
    (problem,) = verify_artifact(store, made.key, {"checkpoint": lambda _: "another"})
    assert (problem.path, problem.reason) == ("content", "is not what the manifest states")


def test_verify_goes_on_after_a_manifest_it_cannot_read(tmp_path: Path):
    store = Store(tmp_path)
    raw = make(store, "raw")
    top = make(store, "top", raw=raw)
    (store.state / manifest_name(raw.key)).write_text("{")
    found = [(p.key, p.path) for p in problems_of(store)]
    assert found == [(raw.key, "manifest"), (top.key, "input raw")]
