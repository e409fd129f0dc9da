"""Looks up the artifact of a step in the store, or one that other code made."""

import dataclasses
from collections.abc import Callable, Mapping, Set
from typing import Literal

from flows.steps.accepted import is_accepted
from flows.steps.kind import Step
from flows.steps.registry import code_digest, kind_of, libraries_of
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Store

State = Literal["reused", "let go", "accepted", "stale", "missing"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepLookup:
    """A step whose inputs are known, and its artifact in the store.

    Attributes:
      state: "reused": this code made it. "let go": this code made it, but its run did not keep its
        files, so a step that reads them needs it made again. "accepted": other code made it, and
        somebody accepted it. "stale": other code made it, and nobody did.
      artifact: the artifact; None where the state is "missing".
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
) -> StepLookup:
    """Looks a step up in the store.

    Args:
      store: the store to look in.
      step: the step to look up.
      inputs: role -> the artifact that it would read; a partial step may lack some.
      accepted: steps that rest on an artifact kept although its code has changed since.
      source: digest of the source tree that would make it, for the manifest.
      pin: function that keeps keys from garbage collection, given by a run that relies on what is
        found.
      before: the store at an earlier moment, whose one listing serves to find artifacts of other
        code; None asks `store`.
    """
    # From the best answer to the worst:
    #
    #   the same key                     reused, or let go if its files were not kept
    #   the same identity, other code    accepted, if somebody accepted it; else stale
    #   nothing                          missing
    #
    # The identity is the key without the code: kind, contents of the inputs, config, seed and
    # versions of libraries.
    accepted_roles = {role for role, read in step.inputs.items() if read in accepted}
    recipe = Recipe(
        kind=step.kind,
        name=step.name,
        inputs={role: artifact.as_input for role, artifact in inputs.items()},
        config=kind_of(step).mark_accepted(step.config, step.inputs, accepted_roles),
        seed=step.seed,
        libraries=libraries_of(step.kind, step.config),
        code=code_digest(step.kind, step.config),
        source=source,
        location=step.location,
    )
    # Pinned before it is looked for: otherwise gc could delete it in between.
    pin(recipe.key)
    if artifact := store.find(recipe.key):
        return StepLookup(recipe=recipe, state="reused", artifact=artifact)
    if artifact := store.find_pruned(recipe.key):
        return StepLookup(recipe=recipe, state="let go", artifact=artifact)
    other_artifacts = (before or store).artifacts_of_identity(recipe.identity)
    pin(*(artifact.key for artifact in other_artifacts))
    other_artifacts = [artifact for artifact in other_artifacts if store.find(artifact.key)]
    for artifact in other_artifacts:
        if is_accepted(store, artifact, recipe.code):
            return StepLookup(recipe=recipe, state="accepted", artifact=artifact)
    if other_artifacts:
        return StepLookup(recipe=recipe, state="stale", artifact=other_artifacts[0])
    return StepLookup(recipe=recipe, state="missing", artifact=None)


def device_seconds(artifact: Artifact) -> float:
    """Returns the cost of making an artifact: time x devices of all attempts [device-seconds].

    It was counted by the processes that computed. Manifests of earlier versions lack it: there it
    is the time, times the devices that were asked for.
    """
    manifest = artifact.manifest
    counted = manifest.environment.get("device_seconds")
    return manifest.seconds * manifest.environment.get("devices", 1) if counted is None else counted
