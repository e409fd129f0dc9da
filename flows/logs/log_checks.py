"""Checks that the readers of all formats share: objects, numbers, distinct ids, and the metric."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from flows.logs.item_log import ItemLogError, LoggedItem
from infra.typed_json import parse_json

MEAN_TOLERANCE = 1e-6
"""Distance of a mean from the one that a log states, up to which both are the same."""

ITEM_PICTURES = ("image_id", "img_id", "imageId", "image_path", "video_id", "video")
"""Fields of a question's data that name its picture or video, as datasets call them."""


def picture_of(fields: Mapping[str, Any]) -> str:
    """Returns the name of the picture or video in a question's data; "" if it has none."""
    named = (fields[name] for name in ITEM_PICTURES if fields.get(name) is not None)
    return str(next(named, ""))


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


def metric_of_means(
    means: Iterable[tuple[str, Any]], values_of: Callable[[str], Sequence[Any]], path: Path
) -> str:
    """Returns the first metric whose numbers, item by item, have the mean that the log states.

    Args:
      means: metric and its mean over all items, in the log's order; what is no number is left out.
      values_of: function from a metric to its value of each item.
      path: the log.

    Raises:
      ItemLogError: if there is none with a number in 0-1 for every item.
    """
    names = []
    for name, mean in means:
        if not is_number(mean):
            continue
        names.append(name)
        values = values_of(name)
        numbers = [float(value) for value in values if is_number(value)]
        if (
            len(numbers) == len(values) > 0
            and all(0 <= number <= 1 for number in numbers)
            and math.isclose(statistics.fmean(numbers), mean, abs_tol=MEAN_TOLERANCE)
        ):
            return name
    raise ItemLogError(
        f"{path}: needs a metric with a number in 0-1 for every question whose mean is the task's "
        f"own, got {', '.join(dict.fromkeys(names)) or 'none'}."
    )
