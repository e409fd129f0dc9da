"""Looks a step up in the store: the artifact itself, or one that other code made."""

import dataclasses
from collections.abc import Callable, Mapping, Set
from typing import Any, Literal

from flows.report.cells import CHANCE, CellKey
from flows.steps.accepted import is_accepted
from flows.steps.kind import Step
from flows.steps.registry import code_digest, libraries_of
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Store

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
