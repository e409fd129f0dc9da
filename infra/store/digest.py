"""Digests of files on disk and of plain values."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_CHUNK = 1 << 20

NOT_IDENTITY = {"identity": False}
"""Metadata of a config field that must not change a step's key: workers, paths, time limits."""

UNLESS_DEFAULT = {"identity": "unless default"}
"""Metadata of a field that was added after artifacts were made: its default changes no key."""


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
    something happens, but does not affect the result. So is one with `UNLESS_DEFAULT` at its
    default.

    Raises:
      TypeError: if the value holds something that JSON cannot express.
      ValueError: if it holds NaN or an infinity.
    """
    return json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
        default=_plain_dataclass,
    )


_MAX_CACHED = 4096
"""Number of objects whose JSON is remembered."""

_json_by_id: dict[int, tuple[object, str]] = {}
"""id of an object -> the object, so that its id is not given to another one, and its JSON."""


def settings_json(value: object) -> str:
    """Returns the `canonical_json` of settings that many steps share.

    The JSON of a frozen dataclass is remembered per object, and not by equality: equal objects may
    have different JSON (1 and 1.0).
    """
    parameters = getattr(type(value), "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        return canonical_json(value)
    cached = _json_by_id.get(id(value))
    if cached is None:
        # Emptied as a whole, which is simpler than dropping the oldest, and seldom needed.
        if len(_json_by_id) >= _MAX_CACHED:
            _json_by_id.clear()
        cached = _json_by_id[id(value)] = value, canonical_json(value)
    return cached[1]


def members_sha256(members: Mapping[str, object]) -> str:
    """Returns the `value_sha256` of a dict, using the remembered JSON of its values."""
    # Spelled as `canonical_json` spells a dict, so that the digest is that of the whole dict,
    # although the JSON of each member comes from memory.
    texts = (f'"{name}":{settings_json(members[name])}' for name in sorted(members))
    return hashlib.sha256(f"{{{','.join(texts)}}}".encode()).hexdigest()


def value_sha256(value: object) -> str:
    """Returns the sha256 of a plain value's canonical JSON [hex]."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def listing_sha256(files: Mapping[str, str]) -> str:
    """Returns the digest of a folder given as relative path -> sha256 [hex]."""
    return value_sha256(dict(files))


def _plain_dataclass(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if _is_identity_field(field, value)
        }
    raise TypeError(f"{type(value).__name__} cannot be part of a step key: {value!r}.")


def _is_identity_field(field: "dataclasses.Field[Any]", owner: object) -> bool:
    """Whether a field of a config is part of a step's identity."""
    #   metadata         value of the field   part of the identity
    #   none             any                  yes
    #   NOT_IDENTITY     any                  no
    #   UNLESS_DEFAULT   its default          no: old keys are as before the field existed
    #   UNLESS_DEFAULT   another              yes
    rule = field.metadata.get("identity", True)
    if rule != UNLESS_DEFAULT["identity"]:
        return bool(rule)
    # So the default of such a field must never change: old keys would mean another value.
    plain = field.default_factory is dataclasses.MISSING
    default = field.default if plain else field.default_factory()  # type: ignore[misc]
    return getattr(owner, field.name) != default
