"""JSON that is checked before it is believed: values of the right types, or one clear line.

A file may be damaged, of another version, or somebody's own. What reads it gets dataclasses whose
fields have the types that they state; anything else is refused with the field and its value.
"""

import contextlib
import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")

_SHOWN = 60
"""Longest part of a value in a message [characters]."""

_WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    types.NoneType: "null",
}


def parse_json(text: str | bytes, name: str, *, finite: bool = True) -> Any:
    """Returns the value of a JSON text; bytes are UTF-8.

    Args:
      text: the text.
      name: what it is, which the message of an error begins with.
      finite: whether NaN and infinities, which some writers put into their files, are refused;
        else they are null.

    Raises:
      ValueError: if it is not JSON, or has a number or a character that no file can hold.
    """
    try:
        number = _parse_finite_number if finite else _finite_or_none
        value = json.loads(text, parse_constant=number, parse_float=number)
        # Half of a surrogate pair has no form in UTF-8: it would fail where it is written.
        if ("\\ud" if isinstance(text, str) else b"\\ud") in text.lower():  # pyright: ignore
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        raise ValueError(f"{name} is not JSON: it is not UTF-8.") from None
    except RecursionError:
        raise ValueError(
            f"{name} is not JSON that anybody writes: it is nested too deeply."
        ) from None
    except json.JSONDecodeError as error:
        shown = error.doc[error.pos : error.pos + 20]
        raise ValueError(
            f"{name} is not JSON from line {error.lineno}, column {error.colno} on: {shown!r}."
        ) from None
    except (
        ValueError
    ) as error:  # Of `_parse_finite_number`; or a number of more digits than Python reads.
        raise ValueError(f"{name} has a number out of range: {error}."[:300]) from None
    return value


def parse_typed(cls: Any, text: str | bytes, name: str) -> Any:
    """Returns the value of a JSON text as a type states it, such as a dataclass; see `typed`.

    Raises:
      ValueError: if it is not JSON, or not of that type; the message begins with `name`.
    """
    value = parse_json(text, name)
    try:
        return typed(cls, value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def read_typed_lines(cls: type[_T], path: Path) -> Iterator[_T]:
    """Yields the dataclasses that a file of JSON lines describes.

    Raises:
      ValueError: at the first line that is not one, with its number.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            yield parse_typed(cls, line, f"{path} line {number}")


def typed(hint: Any, value: Any, at: str = "it") -> Any:
    """Returns a JSON value as a type states it: dataclasses and tuples are made of it.

    Args:
      hint: a dataclass, or a type of JSON's: `str`, `float`, `tuple[int, ...]`, `dict[str, X]`, …
      value: the value.
      at: the field that it is in.

    Raises:
      ValueError: if it is of another type; names the field, the value and what is accepted.
    """
    # JSON knows neither tuples nor classes, so the hints say what a value was:
    #
    #     hint                value             result
    #     tuple[int, ...]     [16, 64]          (16, 64)
    #     ConnectorConfig     {"kind": "mqt"}   ConnectorConfig(kind="mqt")
    #     VisionConfig | None null              None
    if hint is Any or hint is object:
        return value
    if hint in _WORDS:
        return _check_json_type(hint, value, at)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return typed(args[0], value, at)
    if origin in (typing.Union, types.UnionType):
        return _one_of(args, value, at)
    if origin is typing.Literal:
        if not isinstance(value, str | int) or value not in args:
            raise _json_type_error(at, f"one of {', '.join(map(repr, args))}", value)
        return value
    if origin in (tuple, list, Sequence) or hint is tuple:
        return _build_json_sequence(tuple if origin is tuple else list, args, value, at)
    if origin in (dict, Mapping):
        entries = _check_json_type(dict, value, at)
        return {
            key: typed(args[1], entry, _json_field_path(at, key)) for key, entry in entries.items()
        }
    if dataclasses.is_dataclass(hint):
        return _build_json_dataclass(hint, value, at)
    return value


def _check_json_type(hint: type, value: Any, at: str) -> Any:
    # Python counts `true` as a whole number, JSON does not; and every whole number is a number.
    kind = type(value)
    if kind is hint or (hint is float and kind is int):
        return value
    raise _json_type_error(at, _WORDS[hint], value)


def _one_of(args: Sequence[Any], value: Any, at: str) -> Any:
    if value is None and types.NoneType in args:
        return None
    hints = [hint for hint in args if hint is not types.NoneType]
    if len(hints) == 1:  # It says best what is wrong with the value.
        return typed(hints[0], value, at)
    for hint in hints:
        with contextlib.suppress(ValueError):
            return typed(hint, value, at)
    raise _json_type_error(at, " or ".join(_WORDS.get(hint, str(hint)) for hint in hints), value)


def _build_json_sequence(kind: type, args: Sequence[Any], value: Any, at: str) -> Any:
    entries = _check_json_type(list, value, at)
    if kind is list or not args or args[-1] is Ellipsis:
        hints = [args[0] if args else Any] * len(entries)
    else:
        hints = list(args)
    if len(hints) != len(entries):
        raise _json_type_error(at, f"a list of {len(hints)}", value)
    return kind(
        typed(hint, entry, f"{at}[{number}]")
        for number, (hint, entry) in enumerate(zip(hints, entries, strict=True))
    )


def _build_json_dataclass(cls: Any, value: Any, at: str) -> Any:
    fields = _check_json_type(dict, value, at)
    hints, required = _dataclass_field_types(cls)
    if unknown := sorted(fields.keys() - hints.keys()):
        # Refused and not dropped: a field that this version does not know may change what it means.
        accepted = ", ".join(hints)
        raise ValueError(f"{at} has no field {unknown[0]!r:.{_SHOWN}}; accepted: {accepted}.")
    if missing := [name for name in required if name not in fields]:
        raise ValueError(f"{at} lacks the field {missing[0]!r}.")
    values = {
        name: typed(hints[name], entry, _json_field_path(at, name))
        for name, entry in fields.items()
    }
    try:
        return cls(**values)
    except (TypeError, OverflowError) as error:  # Its own check stumbled over a value.
        raise ValueError(
            f"{at} must be a {cls.__name__}, got {value!r:.{_SHOWN}}: {error}."
        ) from None


@functools.cache
def _dataclass_field_types(cls: type) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the types of a dataclass's fields, and the names of those without a default."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = [field for field in dataclasses.fields(cls) if field.init]
    none = dataclasses.MISSING
    required = [f.name for f in fields if f.default is none and f.default_factory is none]
    return {field.name: hints[field.name] for field in fields}, tuple(required)


def _json_field_path(at: str, key: str) -> str:
    return key if at == "it" else f"{at}.{key}"


def _json_type_error(at: str, accepted: str, value: Any) -> ValueError:
    return ValueError(f"{at} must be {accepted}, got {value!r:.{_SHOWN}}.")


def _parse_finite_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _finite_or_none(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None
