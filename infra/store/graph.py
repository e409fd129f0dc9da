"""Walks the lineage that manifests record: what an artifact was made from, down to the files."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from infra.store.digest import listing_sha256
from infra.store.manifest import Manifest
from infra.store.store import Artifact, Store

_OTHER_BYTES = "bytes differ from the manifest"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Visit:
    """An artifact, met on a walk down a history.

    Attributes:
      depth: 0 where the walk begins; inputs lie one deeper.
      role: the part it plays for the artifact above.
      artifact: itself.
      is_last: whether no other input of the one above comes after it.
      is_again: whether the walk met it before; its inputs are not entered then.
    """

    depth: int
    role: str
    artifact: Artifact
    is_last: bool
    is_again: bool


def history(
    store: Store, key: str, role: str = "", *, seen: set[str] | None = None
) -> Iterator[Visit]:
    """Yields everything an artifact was made from, depth first, inputs by role.

    A history is a graph: told as a tree it can double with every step. So each artifact is entered
    once, and there are as many visits as the graph has edges.

    Args:
      store: the artifacts.
      key: where to begin.
      role: of that one.
      seen: keys that were met before; grows.

    Raises:
      KeyError: if an artifact of the history is not in the store.
    """
    met = set() if seen is None else seen
    waiting = [(0, role, key, True)]
    while waiting:
        depth, role, key, is_last = waiting.pop()
        artifact = store.recall(key)
        yield Visit(depth=depth, role=role, artifact=artifact, is_last=is_last, is_again=key in met)
        if key in met:
            continue
        met.add(key)
        inputs = sorted(artifact.manifest.inputs.items())
        below = [(depth + 1, name, entry.key, False) for name, entry in inputs]
        if below:
            below[-1] = (*below[-1][:3], True)
        waiting += reversed(below)


def edges(store: Store, key: str) -> list[tuple[Manifest, str, Manifest]]:
    """Returns (input, role, product) for every step of an artifact's history, each once."""
    found: list[tuple[Manifest, str, Manifest]] = []
    waiting, seen = [key], {key}
    while waiting:
        product = store.recall(waiting.pop()).manifest
        for role, entry in sorted(product.inputs.items()):
            found.append((store.recall(entry.key).manifest, role, product))
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


def verify(
    store: Store,
    key: str,
    contents: Mapping[str, Callable[[Path], str]] | None = None,
) -> Iterator[Problem]:
    """Yields everything about an artifact that is not as its manifest says.

    Every file's bytes are digested again, and so is what the artifact says: from its files, or, if
    its maker stated a logical digest (Orbax files carry clock times), by the function for its kind.

    Args:
      store: where it and its inputs are.
      key: the artifact to check.
      contents: kind -> function from the artifact's folder to its logical digest.

    Raises:
      KeyError: if there is none of that key.
    """
    try:
        artifact = store.get(key)
    except ValueError as error:
        yield Problem(key=key, path="manifest", reason=str(error))
        return
    manifest, sound = artifact.manifest, store.let_go(key) is None
    for name, file in manifest.files.items() if sound else ():
        try:
            stored = store.files.sha256(f"{artifact.folder}/{name}")
            reason = "" if stored == file.sha256 else _OTHER_BYTES
        except FileNotFoundError:
            reason = "missing"
        if reason:
            sound = False
            yield Problem(key=artifact.key, path=name, reason=reason)
    if sound and manifest.content != _listing(manifest):
        recompute = (contents or {}).get(manifest.kind)
        if recompute is not None and recompute(artifact.path) != manifest.content:
            yield Problem(
                key=artifact.key, path="content", reason="is not what the manifest states"
            )
    for role, entry in manifest.inputs.items():
        try:
            content = store.get(entry.key).manifest.content
        except KeyError:
            yield Problem(key=artifact.key, path=f"input {role}", reason=f"{entry.key} is missing")
            continue
        except ValueError as error:
            yield Problem(key=artifact.key, path=f"input {role}", reason=str(error))
            continue
        if content != entry.content:
            yield Problem(key=artifact.key, path=f"input {role}", reason=f"{entry.key} changed")


def _listing(manifest: Manifest) -> str:
    return listing_sha256({name: file.sha256 for name, file in manifest.files.items()})
