"""Walks the lineage that manifests record: what an artifact was made from, down to the files."""

import dataclasses
from collections.abc import Iterator

from infra.store.digest import file_sha256
from infra.store.manifest import Manifest
from infra.store.store import Artifact, Store


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node:
    """An artifact, the role it plays for the one above, and its own inputs."""

    role: str
    artifact: Artifact
    inputs: tuple["Node", ...]


def ancestry(store: Store, key: str, role: str = "") -> Node:
    """Returns the tree of everything an artifact was made from.

    Raises:
      KeyError: if an artifact of the tree is not in the store.
    """
    artifact = store.get(key)
    inputs = sorted(artifact.manifest.inputs.items())
    return Node(
        role=role,
        artifact=artifact,
        inputs=tuple(ancestry(store, entry.key, name) for name, entry in inputs),
    )


def edges(store: Store, key: str) -> list[tuple[Manifest, str, Manifest]]:
    """Returns (input, role, product) for every step of an artifact's history, each once."""
    found: list[tuple[Manifest, str, Manifest]] = []
    waiting, seen = [key], {key}
    while waiting:
        product = store.get(waiting.pop()).manifest
        for role, entry in sorted(product.inputs.items()):
            found.append((store.get(entry.key).manifest, role, product))
            if entry.key not in seen:
                seen.add(entry.key)
                waiting.append(entry.key)
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """Something in the store is not what its manifest says."""

    key: str
    path: str
    reason: str


def verify(store: Store, artifact: Artifact) -> Iterator[Problem]:
    """Yields every file whose bytes are not the recorded ones, and every input that changed."""
    for name, file in artifact.manifest.files.items():
        path = artifact.path / name
        if not path.is_file():
            yield Problem(key=artifact.key, path=name, reason="missing")
        elif file_sha256(path) != file.sha256:
            yield Problem(key=artifact.key, path=name, reason="bytes differ from the manifest")
    for role, entry in artifact.manifest.inputs.items():
        try:
            content = store.get(entry.key).manifest.content
        except (KeyError, ValueError):
            yield Problem(key=artifact.key, path=f"input {role}", reason=f"{entry.key} is missing")
            continue
        if content != entry.content:
            yield Problem(key=artifact.key, path=f"input {role}", reason=f"{entry.key} changed")
