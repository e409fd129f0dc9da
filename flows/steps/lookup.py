"""Looks a step up in the store: the artifact itself, or one that other code made."""

import dataclasses
import datetime
import json
from collections.abc import Callable, Mapping, Set
from typing import Any, Literal

from flows.report.cells import CHANCE, CellKey
from flows.steps.kind import Step
from flows.steps.registry import code_digest, libraries_of
from infra.store.gc import ACCEPTED
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Store

_CODE = 16
"""Hex digits of a code's digest in the name of a note."""

State = Literal["reused", "let go", "accepted", "stale", "missing"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """A step whose inputs are known, and its artifact in the store.

    Attributes:
      state: "reused" is of this code; "let go", too, but its run did not keep its files, and who
        would read them makes it again; "accepted" of other code, and somebody said to keep it;
        "stale" of other code, and nobody did.
      artifact: None where the state is "missing".
    """

    recipe: Recipe
    state: State
    artifact: Artifact | None


def look_up(
    store: Store,
    step: Step,
    inputs: Mapping[str, Artifact],
    accepted: Set[Step],
    *,
    source: str = "",
    pin: Callable[..., None] = lambda *keys: None,
    before: Store | None = None,
) -> Found:
    """Looks a step up in the store.

    Args:
      store: where.
      step: what.
      inputs: role -> the artifact it would read; fewer than its own where it is partial.
      accepted: steps that rest on an artifact kept although its code has changed since.
      source: digest of the source tree that would make it, for the manifest.
      pin: keeps keys from garbage collection; a run that relies on what is found gives it.
      before: the store at an earlier moment, which knows of artifacts of other code without
        listing them anew; None asks `store`.
    """
    recipe = Recipe(
        kind=step.kind,
        name=step.name,
        inputs={role: artifact.as_input for role, artifact in inputs.items()},
        config=_config_of(step, accepted),
        seed=step.seed,
        libraries=libraries_of(step.kind, step.config),
        code=code_digest(step.kind, step.config),
        source=source,
        location=step.location,
    )
    pin(recipe.key)
    if artifact := store.find(recipe.key):
        return Found(recipe=recipe, state="reused", artifact=artifact)
    if artifact := store.let_go(recipe.key):
        return Found(recipe=recipe, state="let go", artifact=artifact)
    others = (before or store).of_identity(recipe.identity)
    pin(*(artifact.key for artifact in others))
    others = [artifact for artifact in others if store.find(artifact.key)]
    for artifact in others:
        if is_accepted(store, artifact, recipe.code):
            return Found(recipe=recipe, state="accepted", artifact=artifact)
    if others:
        return Found(recipe=recipe, state="stale", artifact=others[0])
    return Found(recipe=recipe, state="missing", artifact=None)


def device_seconds(artifact: Artifact) -> float:
    """Returns the cost of making an artifact again: its time, times its devices."""
    manifest = artifact.manifest
    return manifest.seconds * manifest.environment.get("devices", 1)


def accept(store: Store, artifact: Artifact, code: str, *, replayed: str = "") -> None:
    """Notes that an artifact is as good as one made with the code of digest `code`.

    Args:
      store: where it is.
      artifact: what to keep.
      code: of now.
      replayed: what both codes agreed on, if they were compared.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    said = {"artifact": artifact.key, "code": code, "accepted": now, "replayed": replayed}
    text = json.dumps(said, indent=1)
    store.files.create(_note(artifact.key, code), f"{text}\n".encode())


def is_accepted(store: Store, artifact: Artifact, code: str) -> bool:
    """Whether `accept` was called with these."""
    return code[:_CODE] in accepted_codes(store).get(artifact.key, ())


def accepted_codes(store: Store) -> dict[str, list[str]]:
    """Returns key -> the codes, the beginnings of their digests, that `accept` was called with."""
    found: dict[str, list[str]] = {}
    for name in sorted(store.files.listing(ACCEPTED)):
        key, _, code = name.removesuffix(".json").rpartition("-as-")
        found.setdefault(key, []).append(code)
    return found


def _note(key: str, code: str) -> str:
    return f"{ACCEPTED}/{key}-as-{code[:_CODE]}.json"


def _config_of(step: Step, accepted: Set[Step]) -> Any:
    """Returns the step's config; a report's says which of its cells rest on what was kept.

    A row whose chance was kept is above it, or not, on that word: all its cells rest on it.
    """
    if step.kind != "results":
        return step.config
    kept = {role for role, read in step.inputs.items() if read in accepted}
    cells = [cell for role in step.inputs if (cell := CellKey.of_role(role))]
    marked = [c for c in cells if str(c) in kept or f"{CHANCE}{c.benchmark}" in kept]
    return dataclasses.replace(step.config, accepted=tuple(sorted(marked, key=str)))
