"""Looks up the artifact of a step in the store, or one that other code made."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Set
from typing import Literal

from flows.steps.accepted import is_accepted
from flows.steps.kind import Step
from flows.steps.kinds.cast import CAST
from flows.steps.kinds.predictions import PREDICTIONS
from flows.steps.registry import code_digest, kind_of, libraries_of
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Store

LookupState = Literal["reused", "accepted", "stale", "missing"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepLookup:
    """A step whose inputs are known, and its artifact in the store.

    Attributes:
      recipe: how to make it; predictions of a checkpoint whose files were pruned read its cast.
      state: "reused": this code made it. "accepted": other code made it, and somebody accepted it.
        "stale": other code made it, and nobody did.
      artifact: the artifact; None where the state is "missing".
      is_pruned: whether its files were pruned, so a step that reads them needs it made again.
    """

    recipe: Recipe
    state: LookupState
    artifact: Artifact | None
    is_pruned: bool = False


def look_up_step(
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

    Predictions are looked up twice if their checkpoint's files were pruned and there is a cast of
    it: as decoded from the checkpoint, and as decoded from the cast.

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
    look_up_with = functools.partial(
        _look_up, store, step, accepted=accepted, source=source, pin=pin, before=before
    )
    libraries = libraries_of(step.kind, step.config)
    lookup = look_up_with(inputs, libraries=libraries)
    # Artifacts of earlier versions state all libraries of their kind, used or not. Those of the
    # installed versions are this step's; what is made anew states the libraries that it uses.
    all_libraries = libraries_of(step.kind, step.config, all_of_kind=True)
    if lookup.state == "missing" and all_libraries != libraries:
        earlier = look_up_with(inputs, libraries=all_libraries)
        is_reused = earlier.state == "reused"
        return earlier if is_reused else dataclasses.replace(earlier, recipe=lookup.recipe)
    # What was decoded from the float32 checkpoint comes first, and stays reused. What is to be
    # decoded now can only be decoded from the cast:
    #
    #   from the checkpoint   from the cast   then
    #   reused, accepted                      that of the checkpoint
    #   stale, missing        any other       that of the cast
    #   stale                 missing         stale, to be decoded from the cast
    #   missing               missing         missing, to be decoded from the cast
    if step.kind != PREDICTIONS.name or lookup.state not in ("stale", "missing"):
        return lookup
    cast = find_cast(store, inputs["checkpoint"], pin, before)
    if cast is None:
        return lookup
    of_cast = look_up_with({**inputs, "checkpoint": cast}, libraries=libraries)
    if of_cast.state == "missing":
        return dataclasses.replace(lookup, recipe=of_cast.recipe)
    return of_cast


def find_cast(
    store: Store,
    checkpoint: Artifact,
    pin: Callable[..., None] = lambda *keys: None,
    before: Store | None = None,
) -> Artifact | None:
    """Returns the cast of a checkpoint whose files were pruned; None if there is none.

    Whatever code made it: what it was made from is gone. Arguments are those of `look_up_step`.
    """
    if store.find_pruned(checkpoint.key) is None:
        return None
    recipe = Recipe(kind=CAST.name, name="", inputs={"checkpoint": checkpoint.as_input})
    casts = (before or store).artifacts_of_identity(recipe.identity)
    pin(*(cast.key for cast in casts))
    return next((cast for cast in casts if store.find(cast.key)), None)


def _look_up(
    store: Store,
    step: Step,
    inputs: Mapping[str, Artifact],
    *,
    libraries: Mapping[str, str],
    accepted: Set[Step],
    source: str,
    pin: Callable[..., None],
    before: Store | None,
) -> StepLookup:
    """Does as `look_up_step`, with these inputs and versions of libraries alone."""
    # From the best answer to the worst:
    #
    #   the same key                     reused
    #   the same identity, other code    accepted, if somebody accepted it; else stale
    #   nothing                          missing
    #
    # The identity is the key without the code: kind, contents of the inputs, config, seed and
    # versions of libraries. An artifact whose files were pruned counts like any other: only a step
    # that reads them asks for more.
    accepted_roles = {role for role, read in step.inputs.items() if read in accepted}
    recipe = Recipe(
        kind=step.kind,
        name=step.name,
        inputs={role: artifact.as_input for role, artifact in inputs.items()},
        config=kind_of(step).mark_accepted(step.config, step.inputs, accepted_roles),
        seed=step.seed,
        libraries=libraries,
        code=code_digest(step.kind, step.config),
        source=source,
        location=step.location,
        labels=step.labels.to_json(),
    )
    # Pinned before it is looked for: otherwise gc could delete it in between.
    pin(recipe.key)
    if artifact := store.find(recipe.key):
        return StepLookup(recipe=recipe, state="reused", artifact=artifact)
    if artifact := store.find_pruned(recipe.key):
        return StepLookup(recipe=recipe, state="reused", artifact=artifact, is_pruned=True)
    other_artifacts = (before or store).artifacts_of_identity(recipe.identity)
    pin(*(artifact.key for artifact in other_artifacts))
    if step.kind == CAST.name and (cast := find_cast(store, inputs["checkpoint"], pin, before)):
        return StepLookup(recipe=recipe, state="reused", artifact=cast)
    others: list[StepLookup] = []
    for artifact in other_artifacts:
        is_pruned = store.find(artifact.key) is None
        if not is_pruned or store.find_pruned(artifact.key):
            state = "accepted" if is_accepted(store, artifact, recipe.code) else "stale"
            others.append(
                StepLookup(recipe=recipe, state=state, artifact=artifact, is_pruned=is_pruned)
            )
    if others:  # The newest that was accepted, or else the newest.
        return min(others, key=lambda lookup: lookup.state == "stale")
    return StepLookup(recipe=recipe, state="missing", artifact=None)


def device_seconds(artifact: Artifact) -> float:
    """Returns the cost of making an artifact: time x devices of all attempts [device-seconds].

    It was counted by the processes that computed. Manifests of earlier versions lack it: there it
    is the time, times the devices that were asked for.
    """
    manifest = artifact.manifest
    counted = manifest.environment.get("device_seconds")
    return manifest.seconds * manifest.environment.get("devices", 1) if counted is None else counted
