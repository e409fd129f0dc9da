"""Notes on artifacts that somebody accepted although their code has changed since."""

import datetime
import json

from infra.store.records import ACCEPTED
from infra.store.store import Artifact, Store

_CODE = 16
"""Number of hex digits of a code's digest in the name of a note."""


def accept_artifact(store: Store, artifact: Artifact, code: str, *, replayed: str = "") -> None:
    """Notes that an artifact is as good as one made with the code of digest `code`.

    Args:
      store: the store that holds the artifact.
      artifact: the artifact to keep.
      code: digest of today's code [hex].
      replayed: the result that both codes agreed on; "" if they were not compared.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    note = {"artifact": artifact.key, "code": code, "accepted": now, "replayed": replayed}
    text = json.dumps(note, indent=1)
    store.files.create_if_absent(_acceptance_note(artifact.key, code), f"{text}\n".encode())


def is_accepted(store: Store, artifact: Artifact, code: str) -> bool:
    """Whether `accept_artifact` was called with these."""
    return code[:_CODE] in accepted_codes(store).get(artifact.key, ())


def accepted_codes(store: Store) -> dict[str, list[str]]:
    """Returns artifact key -> beginnings of the code digests that it was accepted for."""
    codes: dict[str, list[str]] = {}
    for name in sorted(store.files.listing(ACCEPTED)):
        key, _, code = name.removesuffix(".json").rpartition("-as-")
        codes.setdefault(key, []).append(code)
    return codes


def _acceptance_note(key: str, code: str) -> str:
    return f"{ACCEPTED}/{key}-as-{code[:_CODE]}.json"
