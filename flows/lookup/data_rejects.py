"""`parcel data rejects`: what a dataset left out, by reason."""

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path

from infra.errors import ConfigError
from infra.store.backend import StoreBackend
from infra.store.store import Artifact, Store
from infra.store.stored_folder import BUCKET_SCHEME, open_backend
from infra.typed_json import parse_typed
from pipelines.records.dataset import REJECTS
from pipelines.records.holdings import EXAMPLES, RejectHoldings, group_rejects, reject_lines
from pipelines.records.schema import Reject

_CHUNK = 4 << 20
"""Size of one read of a list of rejects [bytes]."""

_GLANCE = 16 << 20
"""Most of a list that a page or a status reads [bytes], about a hundred thousand rejects."""


def rejects_text(
    name: str, *, store: str, reason: str = "", limit: int = EXAMPLES, as_json: bool = False
) -> str:
    """Returns the rejects of a dataset by reason, the most frequent first, as text.

    Args:
      name: a dataset's folder, the work folder of a preparation that failed, the `rejects.jsonl` of
        either, or an artifact's key, or its beginning.
      store: the store that holds artifacts [URI].
      reason: text that reasons must have, in capitals or not; "" takes all.
      limit: most examples of each kind.
      as_json: whether to return a JSON list rather than lines.

    Raises:
      ConfigError: if there is no such dataset.
    """
    sought = reason.lower()
    rejects = (r for r in _read_named(name, store) if sought in r.reason.lower())
    groups = group_rejects(rejects, limit)
    if as_json:
        return json.dumps([dataclasses.asdict(group) for group in groups], indent=1) + "\n"
    having = f" with {reason!r} in the reason" if reason else ""
    lines = list(reject_lines(groups, None)) or [f"no rejects{having}"]
    return "\n".join(lines) + "\n"


def rejects_of(artifact: Artifact, examples: int = EXAMPLES) -> tuple[RejectHoldings, ...]:
    """Returns the rejects of an artifact by reason; none if it has none, or `gc` deleted them.

    Of a long list the beginning counts.

    Args:
      artifact: a dataset.
      examples: most examples of each kind.
    """
    if not artifact.manifest.counts.get("rejected") or REJECTS not in artifact.manifest.files:
        return ()
    try:
        path = f"{artifact.folder}/{REJECTS}"
        return group_rejects(_read_rejects(artifact.files, path, _GLANCE), examples)
    except FileNotFoundError:  # gc deleted its files.
        return ()


def _read_named(name: str, store: str) -> Iterator[Reject]:
    folder = name.removesuffix(REJECTS).rstrip("/") or "."
    if name.startswith(BUCKET_SCHEME) or Path(folder).is_dir():
        files, path = open_backend(folder), REJECTS
    else:
        try:
            if "://" not in store and not Path(store).expanduser().is_dir():
                raise KeyError(f"there is no store {store}")
            artifact = Store(store, make=False).resolve(name)
        except KeyError as error:
            raise ConfigError(
                f"dataset must be a folder or an artifact of {store}: {error.args[0]}"
            ) from None
        files, path = artifact.files, f"{artifact.folder}/{REJECTS}"
    try:
        yield from _read_rejects(files, path)
    except FileNotFoundError:
        raise ConfigError(
            f"dataset must be a prepared one, or its artifact, got {name}: no {REJECTS} there."
        ) from None


def _read_rejects(files: StoreBackend, path: str, most: float = math.inf) -> Iterator[Reject]:
    """Yields the rejects of a file, or of its first `most` bytes; memory holds a part of it."""
    size, rest = int(min(files.stat(path).size, most)), b""
    for start in range(0, size, _CHUNK):
        data = rest + files.read_range(path, start, min(_CHUNK, size - start))
        *lines, rest = data.split(b"\n")
        yield from (parse_typed(Reject, line, path) for line in lines)
