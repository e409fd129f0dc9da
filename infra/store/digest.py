"""Digests of files on disk, of plain values and of configs.

A config has two spellings in JSON. A manifest holds all its fields, so that it reads the same
whatever becomes of their defaults; a step's key leaves out those at the values that they were born
with, so that a new field leaves every key as it was:

    @dataclasses.dataclass
    class TrainConfig:
        b2: float
        z_loss: float = 0.0       manifest {"b2": 0.99, "z_loss": 0.0}     key {"b2": 0.99}

    z_loss: float = dataclasses.field(default=0.1, metadata=born(0.0))
                                  a changed default: 0.1 has another key, 0.0 the one that it had
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_CHUNK = 1 << 20

NOT_IDENTITY = {"identity": False}
"""Metadata of a config field that must not change a step's key: workers, paths, time limits."""


def born(*value: object) -> dict[str, Any]:
    """Returns metadata of a config field whose default is not the value that it was born with.

    Args:
      value: the default that the field had when it was added; none if it had no default.
    """
    return {"born": value}


def identity_where(name: str) -> dict[str, Any]:
    """Returns metadata of a config field that is part of the identity where another one is set."""
    return {"identity": name}


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
    something happens, but does not affect the result.

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

_json_by_id: dict[tuple[int, bool], tuple[object, str]] = {}
"""id of an object, and whether at identity -> the object, so that its id is not given to another
one, and its JSON."""


def settings_json(value: object) -> str:
    """Returns the `canonical_json` of settings that many steps share."""
    return _cached_json(value, canonical_json, identity=False)


def identity_json(value: object) -> str:
    """Returns the JSON that a step's key is made of: without fields at their birth values."""
    return _cached_json(
        value, lambda config: canonical_json(_identity_values(config)), identity=True
    )


def _cached_json(value: object, spell: Callable[[object], str], *, identity: bool) -> str:
    """Returns the JSON of a value; that of a frozen dataclass is remembered.

    It is remembered per object, and not by equality: equal objects may have different JSON (1 and
    1.0).
    """
    parameters = getattr(type(value), "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        return spell(value)
    cached = _json_by_id.get((id(value), identity))
    if cached is None:
        # Emptied as a whole, which is simpler than dropping the oldest, and seldom needed.
        if len(_json_by_id) >= _MAX_CACHED:
            _json_by_id.clear()
        cached = _json_by_id[id(value), identity] = value, spell(value)
    return cached[1]


def members_sha256(members: Mapping[str, object]) -> str:
    """Returns the digest of a dict's `identity_json`, using the remembered JSON of its values."""
    # Spelled as `identity_json` spells a dict, so that the digest is that of the whole dict,
    # although the JSON of each member comes from memory.
    texts = (f'"{name}":{identity_json(members[name])}' for name in sorted(members))
    return hashlib.sha256(f"{{{','.join(texts)}}}".encode()).hexdigest()


def value_sha256(value: object) -> str:
    """Returns the sha256 of a plain value's canonical JSON [hex]."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def listing_sha256(files: Mapping[str, str]) -> str:
    """Returns the digest of a folder given as relative path -> sha256 [hex]."""
    return value_sha256(dict(files))


@functools.cache
def birth_values(config: type[Any]) -> dict[str, tuple[Any, ...]]:
    """Returns field -> the value that it was born with, for the fields of a config in its identity.

    A field that was born without a default has (), and any other a tuple of one plain value, which
    is the field's default unless `born` says otherwise. Of a nested config it has the fields that
    differ from that config's own defaults.
    """
    births: dict[str, tuple[Any, ...]] = {}
    for field in _identity_fields(config):
        births[field.name] = tuple(
            _without_defaults(value)
            for value in field.metadata.get("born", _config_field_default(field))
        )
    return births


def _identity_fields(config: Any) -> list["dataclasses.Field[Any]"]:
    """Returns the fields of a config in its identity; of its class, those that may be."""

    def counts(condition: bool | str) -> bool:
        if isinstance(condition, bool) or isinstance(config, type):
            return bool(condition)
        return getattr(config, condition) is not None

    return [f for f in dataclasses.fields(config) if counts(f.metadata.get("identity", True))]


def _config_field_default(field: "dataclasses.Field[Any]") -> tuple[Any, ...]:
    if field.default is not dataclasses.MISSING:
        return (field.default,)
    return () if field.default_factory is dataclasses.MISSING else (field.default_factory(),)


def _identity_values(value: object) -> object:
    """Returns plain values without the fields of configs that are at their birth values."""

    #   TrainConfig(b2=0.99, z_loss=0.0)      {"b2": 0.99}
    #   FitSpec(train=TrainConfig(...))       {"train": {"b2": 0.99}}
    def is_born(name: str, plain: object) -> bool:
        births = birth_values(type(value))[name]
        return bool(births) and canonical_json(births[0]) == canonical_json(plain)

    return _plain_values(value, _identity_values, is_born)


def _without_defaults(value: object) -> object:
    """Returns plain values without the fields of configs that are at today's defaults."""

    # Not at their birth values: the birth value of `inner: Inner = Inner()` is {}, an `Inner` whose
    # fields all have theirs, also when a default of `Inner` is another one today.
    def is_default(name: str, plain: object) -> bool:
        (field,) = (field for field in _identity_fields(value) if field.name == name)
        defaults = _config_field_default(field)
        return bool(defaults) and canonical_json(_without_defaults(defaults[0])) == canonical_json(
            plain
        )

    return _plain_values(value, _without_defaults, is_default)


def _plain_values(
    value: object, inner: Callable[[object], object], is_left_out: Callable[[str, object], bool]
) -> object:
    if _is_config(value):
        names = [field.name for field in _identity_fields(value)]
        pairs = ((name, inner(getattr(value, name))) for name in names)
        return {name: plain for name, plain in pairs if not is_left_out(name, plain)}
    if isinstance(value, Mapping):
        return {key: inner(item) for key, item in value.items()}
    return [inner(item) for item in value] if isinstance(value, list | tuple) else value


def _is_config(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _plain_dataclass(value: object) -> object:
    if _is_config(value):
        return {field.name: getattr(value, field.name) for field in _identity_fields(value)}
    raise TypeError(f"{type(value).__name__} cannot be part of a step key: {value!r}.")
