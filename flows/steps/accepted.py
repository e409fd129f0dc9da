"""Notes of artifacts that somebody said to keep although their code has changed."""

import datetime
import json

from infra.store.gc import ACCEPTED
from infra.store.store import Artifact, Store

_CODE = 16
"""Hex digits of a code's digest in the name of a note."""


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
