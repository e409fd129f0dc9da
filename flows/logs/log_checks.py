"""Checks that the readers of all formats share: objects, numbers, pictures and distinct ids."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from flows.logs.item_log import ItemLogError, LoggedItem
from infra.typed_json import parse_json

MEAN_TOLERANCE = 1e-6
"""Distance of a mean from the one that a log states, up to which both are the same."""

PICTURES = (
    *("source_sha256", "image_sha256"),
    *("image_id", "img_id", "imageId", "image_path", "image_name", "image", "video_id", "video"),
)
"""Fields of a question's data that tell its picture or video, the surest first."""


def picture_of(fields: Mapping[str, Any]) -> str:
    """Returns the digest or name of the picture or video in a question's data; "" without one."""
    named = (fields.get(name) for name in PICTURES)
    return next((str(name) for name in named if isinstance(name, str | int) and name != ""), "")


def text_of(value: Any) -> str:
    """Returns a value as a text; "" of none, and of an empty list."""
    return "" if value is None or value == [] else str(value)


def is_number(value: Any) -> TypeGuard[float]:
    """Returns whether a value is a number, or a truth value, which counts as 0 or 1."""
    return isinstance(value, bool | int | float)


def parse_object(text: bytes, name: str) -> dict[str, Any]:
    """Returns the object that a JSON text is; NaN and infinities in it are None.

    Raises:
      ItemLogError: if it is none, or no JSON; the message begins with `name`.
    """
    try:
        value = parse_json(text, name, finite=False)
    except ValueError as error:
        raise ItemLogError(str(error)) from None
    if not isinstance(value, dict):
        raise ItemLogError(f"{name}: it must be an object, got {value!r:.60}.")
    return value


def object_member(values: Mapping[str, Any], name: str, place: str | Path) -> dict[str, Any]:
    """Returns a member of an object that is an object itself.

    Raises:
      ItemLogError: if it is none; the message begins with `place`.
    """
    value = values.get(name)
    if not isinstance(value, dict):
        raise ItemLogError(f"{place}: {name} must be an object, got {value!r:.60}.")
    return value


def optional_object(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns a member of an object that is an object itself; {} if it is none."""
    value = values.get(name)
    return value if isinstance(value, dict) else {}


def sorted_items(items: Iterable[tuple[str, LoggedItem]], field: str) -> tuple[LoggedItem, ...]:
    """Returns items sorted by id.

    Args:
      items: place of an item, such as "FILE line 3", and the item.
      field: what the format calls an item's id.

    Raises:
      ItemLogError: if an id is there twice.
    """
    by_id: dict[str, LoggedItem] = {}
    for place, item in items:
        if by_id.setdefault(item.id, item) is not item:
            raise ItemLogError(f"{place}: {field} {item.id} is there twice.")
    return tuple(by_id[name] for name in sorted(by_id))
