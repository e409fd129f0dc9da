"""Digests: of bytes on disk and of plain values."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

_CHUNK = 1 << 20

NOT_IDENTITY = {"identity": False}
"""Metadata of a config field that must not change a step's key: workers, paths, time limits."""


def file_sha256(path: Path) -> str:
    """Returns the sha256 of a file's bytes [hex]."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def canonical_json(value: object) -> str:
    """Returns JSON with one spelling per value: sorted keys, no spaces; dataclasses become dicts.

    A dataclass field with `metadata=NOT_IDENTITY` is left out: it says where or how often
    something happens, not what comes of it.

    Raises:
      TypeError: if the value holds something JSON cannot say.
      ValueError: if it holds NaN or an infinity.
    """
    return json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
        default=_plain,
    )


def value_sha256(value: object) -> str:
    """Returns the sha256 of a plain value's canonical JSON [hex]."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def listing_sha256(files: Mapping[str, str]) -> str:
    """Returns the digest of a folder given as relative path -> sha256 [hex]."""
    return value_sha256(dict(files))


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if field.metadata.get("identity", True)
        }
    raise TypeError(f"{type(value).__name__} cannot be part of a step key: {value!r}.")
