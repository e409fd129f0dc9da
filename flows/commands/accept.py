"""`parcel accept`: finds the stale artifacts that a name means, and keeps them."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from flows.steps.lookup import accept, is_accepted
from flows.steps.registry import code_digest
from flows.study.load import ConfigError
from infra.store.store import Artifact, Store


def accept_stale(store: Store, name: str) -> Iterator[str]:
    """Keeps the newest stale artifact of every identity that a name means; yields a line for each.

    Args:
      store: where they are.
      name: a step's name, which may hold `*`, or the beginning of a key.

    Raises:
      ConfigError: if nothing is called so, or nothing of it is stale.
    """
    named = [
        artifact
        for artifact in store.artifacts()
        if fnmatchcase(artifact.manifest.name, name) or artifact.key.startswith(name)
    ]
    if not named:
        raise ConfigError(
            f"STEP must be the name of a step or a key in {store.root}, got {name!r}."
        )
    newest: dict[str, Artifact] = {}
    fresh: set[str] = set()
    for artifact in sorted(named, key=lambda a: a.manifest.started):
        manifest = artifact.manifest
        identity = artifact.key.rpartition("-")[0]
        code = code_digest(manifest.kind, manifest.config)
        newest[identity] = artifact
        if manifest.code == code or is_accepted(store, artifact, code):
            fresh.add(identity)
    stale = [artifact for identity, artifact in newest.items() if identity not in fresh]
    if not stale:
        raise ConfigError(f"STEP {name!r} is not stale: its code is that of its artifacts.")
    for artifact in stale:
        manifest = artifact.manifest
        accept(store, artifact, code_digest(manifest.kind, manifest.config))
        yield f"kept {artifact.key} ({manifest.name}, made {manifest.started})"
