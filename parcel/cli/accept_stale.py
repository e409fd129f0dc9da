"""`parcel accept`: keeps the stale artifacts of a study that match a name."""

from collections.abc import Iterator

from flows.graph.explain import Explanation
from flows.steps.accepted import accept_artifact
from flows.steps.kind import Step
from flows.steps.registry import code_digest
from flows.steps.remake import RemakeError, step_loss_lines
from infra.errors import ConfigError
from infra.source_code import checkout
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Store


def accept_stale(
    store: Store, explanation: Explanation, name: str, *, units: int = 0
) -> Iterator[str]:
    """Keeps the stale artifacts that match a name, and yields a line for each.

    Args:
      store: the store that holds the artifacts.
      explanation: verdict on every step of the study.
      name: a step's name as `--explain` shows it, which may hold `*`, or the beginning of a key.
      units: number of updates of a training to repeat with the old and with today's code; other
        steps are repeated whole. An artifact is kept only if both agree to the last digit. 0
        repeats nothing.

    Raises:
      ConfigError: if no step matches, or none that does is stale; or if the two codes disagree,
        or one of them fails. Artifacts accepted before the failing one stay accepted.
    """
    # A key means one artifact, a name all stale steps of the nodes that it matches.
    stale = explanation.stale()
    keys = {step: explanation.steps[step].artifact for step in stale}
    by_key = [step for step, artifact in keys.items() if artifact and artifact.key.startswith(name)]
    nodes = [node for node in explanation.graph.nodes if node.matches(name)]
    if not nodes and not by_key:
        raise ConfigError(
            f"STEP must be the name of a step of the study, or the key of a stale artifact, got "
            f"{name!r}; `parcel run --explain` lists them."
        )
    steps = by_key or [step for node in nodes for step in node.steps if step in keys]
    if not steps:
        raise ConfigError(
            f"STEP {name!r} is not stale; `parcel run --explain` lists the stale steps."
        )
    # One by one: what was replayed and kept stays kept, if a later one should disagree.
    for step in steps:
        artifact = keys[step]
        assert artifact is not None
        replay_note = _replay_agrees(store, step, artifact, units) if units else ""
        accept_artifact(store, artifact, code_digest(step.kind, step.config), replayed=replay_note)
        agreement = f"; both codes give {replay_note}" if replay_note else ""
        yield f"kept {artifact.key} ({step.name}, made {artifact.manifest.started}{agreement})"


def _replay_agrees(store: Store, step: Step, artifact: Artifact, units: int) -> str:
    """Makes a step with the old code and with today's; returns the last line that both report."""
    manifest = artifact.manifest
    if not manifest.source:
        raise ConfigError(f"{step.name} is not kept: the code that made it is not in the store.")
    # The inputs of the artifact, not those of today: the same work, under two codes.
    recipe = Recipe(
        kind=step.kind,
        name=step.name,
        inputs=manifest.inputs,
        config=step.config,
        seed=step.seed,
        location=step.location,
    )
    ends = []
    for when, tree in (
        ("the old", store.open_source(manifest.source)),
        ("today's", checkout().files),
    ):
        try:
            ends.append(step_loss_lines(store, recipe, tree, units))
        except RemakeError as error:
            raise ConfigError(
                f"{step.name} is not kept: it fails with {when} code: {error}"
            ) from None
    then, now = ends
    # Lines before counts: the first line that differs says more than a missing one.
    for before, after in zip(then, now, strict=False):
        if before != after:
            raise ConfigError(
                f"{step.name} is not kept: the old code gives {before}, today's gives {after}; "
                f"`parcel run --rebuild` makes it again."
            )
    if len(then) != len(now):
        raise ConfigError(
            f"{step.name} is not kept: the old code reports its loss at other updates than "
            f"today's; `parcel run --rebuild` makes it again."
        )
    return now[-1]
