"""Conversion of frozen dataclasses to JSON and back."""

import dataclasses
import json
from pathlib import Path
from typing import Any, TypeVar

from infra.typed_json import parse_json, parse_typed

_T = TypeVar("_T")


def config_to_json(config: Any) -> str:
    """Returns a nested dataclass as JSON, keys sorted."""
    return json.dumps(dataclasses.asdict(config), indent=1, sort_keys=True) + "\n"


def config_from_json(cls: type[_T], text: str | bytes, name: str = "the config") -> _T:
    """Returns the dataclass that a JSON text describes; its `__post_init__` checks it as usual.

    Raises:
      ValueError: if a key is unknown, or a value of another type; the message begins with `name`.
    """
    return parse_typed(cls, text, name)


def connector_kind(path: Path) -> str:
    """Returns the kind of connector that a checkpoint's `model.json` states.

    It is read as text: to read the config as such would import the class of a user's connector.

    Raises:
      ValueError: if the file states none.
    """
    config = parse_json(path.read_bytes(), str(path))
    try:
        kind = config["connector"]["kind"]
    except (TypeError, LookupError):
        kind = None
    if not isinstance(kind, str):
        raise ValueError(f"{path} must state a connector.kind, got {kind!r:.60}.")
    return kind
