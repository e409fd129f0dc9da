"""Walks the lineage that manifests record: what an artifact was made from, down to the files."""

import dataclasses
import graphlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from infra.store.digest import listing_sha256
from infra.store.manifest import Manifest
from infra.store.store import Artifact, Store

_DIFFERENT_BYTES = "bytes differ from the manifest"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineageVisit:
    """An artifact met on a walk down a history.

    Attributes:
      depth: 0 where the walk begins; inputs are one deeper.
      role: role of the artifact as an input of the one above.
      artifact: the artifact.
      is_last: whether it is the last input of the one above.
      is_again: whether the walk met it before; its inputs are then not visited again.
    """

    depth: int
    role: str
    artifact: Artifact
    is_last: bool
    is_again: bool


def inputs_first(inputs: Mapping[str, Iterable[str]]) -> list[str]:
    """Returns keys of artifacts, each after those that it was made from.

    Args:
      inputs: key -> keys of its inputs.

    Raises:
      ValueError: if an artifact was made from itself, by what the manifests say.
    """
    try:
        return [*graphlib.TopologicalSorter(inputs).static_order()]
    except graphlib.CycleError as error:
        cycle = " <- ".join(error.args[1])
        raise ValueError(
            f"manifests must not name each other in a circle, got {cycle}; one of them was "
            f"changed: restore it, or move it out of the store."
        ) from None


def walk_lineage(
    store: Store, key: str, role: str = "", *, visited_keys: set[str] | None = None
) -> Iterator[LineageVisit]:
    """Yields everything an artifact was made from, depth first, inputs by role.

    A history is a graph; as a tree it could double in size with every step. So the inputs of each
    artifact are visited once, and there are as many visits as the graph has edges.

    Args:
      store: store of the artifacts.
      key: key of the artifact where the walk begins.
      role: role of that artifact.
      visited_keys: keys that were met before; the walk adds its own.

    Raises:
      KeyError: if an artifact of the history is not in the store.
    """
    # What a walk yields, with `data` an input of two artifacts:
    #
    #   results            depth 0
    #   |-- checkpoint           1
    #   |   `-- data             2   is_last
    #   `-- data                 1   is_last, is_again: its inputs were visited above
    visited = set() if visited_keys is None else visited_keys
    pending = [(0, role, key, True)]
    while pending:
        depth, role, key, is_last = pending.pop()
        artifact = store.get_cached(key)
        yield LineageVisit(
            depth=depth, role=role, artifact=artifact, is_last=is_last, is_again=key in visited
        )
        if key in visited:
            continue
        visited.add(key)
        inputs = sorted(artifact.manifest.inputs.items())
        below = [(depth + 1, name, entry.key, False) for name, entry in inputs]
        if below:
            below[-1] = (*below[-1][:3], True)
        # The list is a stack, so the first input must be pushed last.
        pending += reversed(below)


def lineage_edges(store: Store, key: str) -> list[tuple[Manifest, str, Manifest]]:
    """Returns (input, role, product) for every step of an artifact's history, each once."""
    edges: list[tuple[Manifest, str, Manifest]] = []
    pending, visited = [key], {key}
    while pending:
        product = store.get_cached(pending.pop()).manifest
        for role, entry in sorted(product.inputs.items()):
            edges.append((store.get_cached(entry.key).manifest, role, product))
            if entry.key not in visited:
                visited.add(entry.key)
                pending.append(entry.key)
    return edges


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoreProblem:
    """A difference between the store and a manifest."""

    key: str
    path: str
    reason: str


def verify_artifact(
    store: Store,
    key: str,
    contents: Mapping[str, Callable[[Path], str]] | None = None,
) -> Iterator[StoreProblem]:
    """Yields every difference between an artifact and its manifest.

    Every file is digested again. If the artifact's maker stated a logical digest (Orbax files carry
    clock times), it is computed again by the function for its kind.

    Args:
      store: store of the artifact and its inputs.
      key: the artifact to check.
      contents: kind -> function from the artifact's folder to its logical digest.

    Raises:
      KeyError: if there is none of that key.
    """
    try:
        artifact = store.get(key)
    except ValueError as error:
        yield StoreProblem(key=key, path="manifest", reason=str(error))
        return
    # Files that gc deleted on a run's word are no damage; the rest of the manifest is checked all
    # the same.
    manifest, is_intact = artifact.manifest, store.find_pruned(key) is None
    for name, file in manifest.files.items() if is_intact else ():
        try:
            sha256 = store.files.sha256(f"{artifact.folder}/{name}")
            reason = "" if sha256 == file.sha256 else _DIFFERENT_BYTES
        except FileNotFoundError:
            reason = "missing"
        if reason:
            is_intact = False
            yield StoreProblem(key=artifact.key, path=name, reason=reason)
    # Only of sound files: over damaged ones the logical digest would differ, too, and say less.
    if is_intact and manifest.content != _listing_digest(manifest):
        recompute = (contents or {}).get(manifest.kind)
        if recompute is not None and recompute(artifact.path) != manifest.content:
            yield StoreProblem(
                key=artifact.key, path="content", reason="is not what the manifest states"
            )
    # An input is named by key and content. Its key may have been made again since, with other
    # bytes: then this artifact was made from something that is no longer there.
    for role, entry in manifest.inputs.items():
        try:
            content = store.get(entry.key).manifest.content
        except KeyError:
            yield StoreProblem(
                key=artifact.key, path=f"input {role}", reason=f"{entry.key} is missing"
            )
            continue
        except ValueError as error:
            yield StoreProblem(key=artifact.key, path=f"input {role}", reason=str(error))
            continue
        if content != entry.content:
            yield StoreProblem(
                key=artifact.key, path=f"input {role}", reason=f"{entry.key} changed"
            )


def _listing_digest(manifest: Manifest) -> str:
    return listing_sha256({name: file.sha256 for name, file in manifest.files.items()})
