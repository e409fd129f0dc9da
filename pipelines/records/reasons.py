"""Reasons for which an input is refused, in words about the input and never in Python's own."""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from pipelines.records.schema import BadInput

_KINDS = {
    "NoneType": "nothing (null)",
    "bool": "true or false",
    "int": "a number",
    "float": "a number",
    "str": "a text",
    "bytes": "bytes",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
}
_KIND = re.compile(rf"'({'|'.join(_KINDS)})'")
_INDEXED = re.compile(r"(string|list|tuple|byte) indices must be")
_NUMBER = re.compile(
    r"(?:could not convert string to float|invalid literal for int\(\) with base 10): (.*)",
    re.DOTALL,
)
_UNPACKED = re.compile(r"not enough values to unpack \(expected (?:at least )?(\d+), got (\d+)\)")
_UNPACKED_MORE = re.compile(r"too many values to unpack \(expected (\d+)")
_OTHER = "a value is not of the kind that is expected"
_MAX = 160
"""Longest reason for a value, and longest excerpt of a row [characters]."""


POINTER = b"version https://git-lfs"
"""How a file begins that stands for one in Git LFS."""


def reason_of(error: BaseException, row: object = None) -> str:
    """Returns why an input is refused, in one line.

    Args:
      error: the error that it caused: a `BadInput`, whose text is a reason already, or one of
        Python or a library.
      row: what was read when it happened; an excerpt of it is added where the error itself names
        neither field nor value.
    """
    if isinstance(error, BadInput):
        return str(error)
    if isinstance(error, KeyError):
        missing = f"{error.args[0]!r:.60} is missing" if error.args else "a field is missing"
        # A number is no name of a field: it was looked up in another table.
        is_field = isinstance(row, Mapping) and isinstance((*error.args, "")[0], str)
        return missing + (
            f" among {', '.join(map(repr, cast(Any, row)))}"[:_MAX] if is_field else ""
        )
    if isinstance(error, json.JSONDecodeError):
        rest = error.doc[error.pos : error.pos + 20]
        return f"not JSON from character {error.pos + 1} on: {rest!r}"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start}"
    if isinstance(error, UnicodeEncodeError):
        return (
            f"character {error.start + 1} is half of a surrogate pair, which UTF-8 has no form of"
        )
    if isinstance(error, RecursionError):
        return "nested too deeply"
    of_library = type(error).__module__ != "builtins"
    if of_library or isinstance(error, OSError | EOFError | SyntaxError):  # Words about a file.
        text = getattr(error, "strerror", None) or str(error)
        return " ".join(text.split())[:_MAX] or "the file ends too early"
    return f"{_of_value(error)}{_row_excerpt(row)}"


def _of_value(error: BaseException) -> str:
    """Returns a reason about the value, read from the text of Python's error."""
    text = " ".join(str(error).split())
    if isinstance(error, IndexError):
        return "a list has fewer values than expected"
    if "integer string conversion" in text:
        return "a number has too many digits"
    if isinstance(error, OverflowError):
        return "a number is infinite, or too large"
    if number := _NUMBER.search(text):
        return f"{number[1]:.60} is not a number"
    if "NaN" in text:
        return "a number is NaN"
    if "Out of range float" in text:
        return "a number is NaN or infinite"
    if unpacked := _UNPACKED.search(text):
        return f"{unpacked[2]} values where {unpacked[1]} are expected"
    if unpacked := _UNPACKED_MORE.search(text):
        return f"more than the expected {unpacked[1]} values"
    if isinstance(error, TypeError | AttributeError):
        if indexed := _INDEXED.search(text):
            return f"a {indexed[1].replace('string', 'text')} where an object is expected"
        if kind := _KIND.search(text):
            return f"{_KINDS[kind[1]]} where another kind of value is expected"
    return _OTHER


def _row_excerpt(row: object) -> str:
    """Returns the beginnings of a row's fields, or of another value; "" for None."""
    if row is None:
        return ""
    if isinstance(row, Mapping):
        fields = ", ".join(f"{key}: {_shorten_field_value(value)}" for key, value in row.items())
        return f"; the row has {fields}"[:_MAX]
    return f"; the row is {_shorten_field_value(row)}"[:_MAX]


def kind_of(value: object) -> str:
    """Returns the kind of a value in the words of data: "a text", "nothing (null)"."""
    return _KINDS.get(type(value).__name__, "another kind of value")


def _shorten_field_value(value: object) -> str:
    return f"{len(value)} bytes" if isinstance(value, bytes) else f"{value!r:.40}"
