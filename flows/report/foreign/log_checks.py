"""Checks that the readers of all formats share: objects, numbers, distinct ids, and the metric."""

import ast
import contextlib
import errno
import math
import statistics
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from flows.report.foreign.item_log import ItemLogError, LoggedItem
from infra.typed_json import parse_json

MAX_BYTES = 2**30
"""Largest text that is held at once: a table, a log of one text, a member of an archive [bytes].

Some logs have the pictures in them: 5,000 questions with 150 kB each make 0.7 GiB.
"""

TOLERANCE = 1e-6
"""Distance of a mean from the one that a log states, up to which both are the same."""

PICTURES = ("image_id", "img_id", "imageId", "image_path", "video_id", "video")
"""Fields of a question's data that name its picture or video, as datasets call them."""


def picture_of(fields: Mapping[str, Any]) -> str:
    """Returns the name of the picture or video in a question's data; "" if it has none."""
    named = (fields[name] for name in PICTURES if fields.get(name) is not None)
    return str(next(named, ""))


def parse_list(value: Any) -> list[Any]:
    """Returns a list, or the one that a text shows as Python writes it; [] if there is none."""
    if isinstance(value, str) and value.startswith("["):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return []
    return value if isinstance(value, list) else []


@contextlib.contextmanager
def damage_errors(place: str, *also: type[Exception]) -> Iterator[None]:
    """Makes an `ItemLogError` of what Python raises of damaged archives and texts.

    Args:
      place: what the message begins with.
      also: further errors that mean damage.
    """
    try:
        yield
    except ItemLogError:
        raise
    except (
        *also, zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError,
        ValueError,
    ) as error:  # fmt: skip
        # An error of the disk is no damage; a place that no file has, in an archive's index, is.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        reason = " ".join(str(error).split())[:120]
        raise ItemLogError(f"{place}: {reason}.") from None


def is_number(value: Any) -> TypeGuard[float]:
    """Returns whether a value is a number, or a truth value, which counts as 0 or 1."""
    return isinstance(value, bool | int | float)


def parse_log(text: bytes, name: str) -> Any:
    """Returns the value of a JSON text; NaN and infinities in it are None.

    Raises:
      ItemLogError: if it is no JSON; the message begins with `name`.
    """
    try:
        return parse_json(text, name, finite=False)
    except ValueError as error:
        raise ItemLogError(str(error)) from None


def parse_object(text: bytes, name: str) -> dict[str, Any]:
    """Returns the object that a JSON text is, as `parse_log` does.

    Raises:
      ItemLogError: if it is none; the message begins with `name`.
    """
    value = parse_log(text, name)
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
            and math.isclose(statistics.fmean(numbers), mean, abs_tol=TOLERANCE)
        ):
            return name
    raise ItemLogError(
        f"{path}: needs a metric with a number in 0-1 for every question whose mean is the task's "
        f"own, got {', '.join(dict.fromkeys(names)) or 'none'}."
    )
