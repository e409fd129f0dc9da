"""`parcel accept`: keeps the stale artifacts of a study that a name means."""

from collections.abc import Iterator

from flows.steps.lookup import accept
from flows.steps.registry import code_digest
from flows.study.explain import Explanation
from flows.study.load import ConfigError
from infra.store.store import Store


def accept_stale(store: Store, explanation: Explanation, name: str) -> Iterator[str]:
    """Keeps the stale artifacts of steps that a name means; yields a line for each.

    Args:
      store: where they are.
      explanation: of the study.
      name: a step's name as `--explain` shows it, which may hold `*`, or the beginning of a key.

    Raises:
      ConfigError: if no step is called so, or none of them is stale.
    """
    stale = explanation.stale()
    keys = {step: explanation.steps[step].artifact for step in stale}
    by_key = [step for step, artifact in keys.items() if artifact and artifact.key.startswith(name)]
    nodes = [node for node in explanation.graph.nodes if node.matches(name)]
    if not nodes and not by_key:
        raise ConfigError(
            f"STEP must be the name of a step of the study, or the key of a stale artifact, got "
            f"{name!r}; `parcel run --explain` lists them."
        )
    named = by_key or [step for node in nodes for step in node.steps if step in keys]
    if not named:
        raise ConfigError(f"STEP {name!r} is not stale; `parcel run --explain` says what is.")
    for step in named:
        artifact = keys[step]
        assert artifact is not None
        accept(store, artifact, code_digest(step.kind, step.config))
        yield f"kept {artifact.key} ({step.name}, made {artifact.manifest.started})"
