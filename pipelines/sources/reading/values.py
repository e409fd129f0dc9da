"""Texts and absent values of rows: the one place that says what a text is, for every reader."""

import codecs
import contextlib
import json
import math
import numbers
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

from pipelines.records.schema import BadInput

_MARK = "\ufeff"
"""Byte order mark; programs on Windows put it before a text, and it is no part of it."""

_MARKS_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_LANGUAGE = re.compile(r"\S+")


def parse_row(text: str | bytes) -> Any:
    """Returns the value of a row of JSON.

    Raises:
      BadInput: if an object has two values of one name.
      ValueError: if it is not JSON.
    """

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            names = [name for name, _ in pairs]
            doubled = next(name for name in fields if names.count(name) > 1)
            raise BadInput(f"{doubled!r:.60} is there twice")
        return fields

    return json.loads(text, object_pairs_hook=object_of)


def is_absent(value: object) -> bool:
    """Returns whether a value is null or NaN, which tables write where a row has no value."""
    if value is None:
        return True
    if isinstance(value, numbers.Number):
        return bool(value != value)
    # pandas writes these two of its own; comparing its NA with anything gives NA, not a bool.
    return type(value).__name__ in ("NAType", "NaTType")


def without_absent(value: Any) -> Any:
    """Returns a row without the keys whose values are absent, at any depth.

    Null, NaN and a missing key then mean the same. Elements of lists stay: a list with a hole is
    not the shorter list.
    """
    if isinstance(value, Mapping):
        return {k: without_absent(v) for k, v in value.items() if not is_absent(v)}
    if isinstance(value, list):
        return [without_absent(v) if isinstance(v, Mapping | list) else v for v in value]
    return value


def text_of(value: object, field: str) -> str:
    """Returns a text, without a byte order mark; bytes are UTF-8, or UTF-16 if a mark says so.

    Raises:
      BadInput: if it is none, naming the field and the value.
    """
    if isinstance(value, str):
        return value.lstrip(_MARK)
    if isinstance(value, bytes):
        is_utf16 = value.startswith(_MARKS_UTF16) and len(value) > len(codecs.BOM_UTF16)
        try:
            return value.decode("utf-16" if is_utf16 else "utf-8").lstrip(_MARK)
        except UnicodeDecodeError:
            raise BadInput(f"{field} is not UTF-8") from None
    raise BadInput(f"{field} must be a text, got {value!r}"[:120])


def answer_of(value: object, field: str) -> str:
    """Returns an answer, which may be a number: 2 and 2.0 are "2", 1e16 is "10000000000000000".

    Raises:
      BadInput: if it is neither a text nor a number, naming the field and the value.
    """
    is_number = isinstance(value, numbers.Real | Decimal) and not isinstance(value, bool)
    number = cast(Any, value)
    if not is_number or is_absent(value) or abs(number) == float("inf"):
        return text_of(value, field)
    # A column of counts in which one is missing is a column of floats.
    return str(int(Decimal(str(number)))) if number == int(number) else str(number)


def language_of(value: object, field: str) -> str:
    """Returns the language under `field`; "en" where none is given.

    Raises:
      BadInput: as in `text_of`, or if it is more than a word: prompts name it.
    """
    language = "en" if is_absent(value) else text_of(value, field).strip() or "en"
    if not _LANGUAGE.fullmatch(language):
        raise BadInput(f"{field} must be a language, such as en or zh-Hans, got {value!r}"[:120])
    return language


def rows_under(fields: Mapping[str, Any], field: str) -> list[Any]:
    """Returns the rows that a field lists; tables may have them as an object of columns.

        [{"text": "a", "box": [1, 1, 2, 2]}]       {"text": ["a"], "box": [[1, 1, 2, 2]]}

    Raises:
      BadInput: if it is neither, naming the field and the value.
    """
    value = fields.get(field)
    if is_absent(value) or value == {}:
        return []
    if isinstance(value, list | tuple):
        return list(value)
    columns = list(value.values()) if isinstance(value, Mapping) else []
    is_table = columns and all(isinstance(column, list | tuple) for column in columns)
    if not isinstance(value, Mapping) or not is_table:
        raise BadInput(f"{field} must be a list of objects, got {value!r}"[:120])
    if len({len(column) for column in columns}) > 1:
        lengths = ", ".join(f"{len(column)} {name}" for name, column in value.items())
        raise BadInput(f"{field} must have as many values in each column, got {lengths}"[:120])
    cells = zip(*columns, strict=True)
    return [without_absent(dict(zip(value, row, strict=True))) for row in cells]


def value_under(row: object, field: str, listing: str) -> Any:
    """Returns the value under a field of one of the rows in `rows_under`.

    Raises:
      BadInput: if the row is no object, or has no value there, naming both.
    """
    if not isinstance(row, Mapping):
        raise BadInput(f"{listing} must list objects with {field}, got {row!r}"[:120])
    if is_absent(row.get(field)):
        raise BadInput(f"{field!r} is missing (absent, null or NaN) in {listing}: {row!r}"[:160])
    return row[field]


def box_of(
    value: object, field: str, form: str = "x0, y0, x1, y1"
) -> tuple[float, float, float, float]:
    """Returns the four numbers of a box, whose meaning is its `form`.

    Raises:
      BadInput: if it is no list of four finite numbers, naming the field and the value.
    """
    numbers_of_box: list[float] = []
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if isinstance(value, list | tuple):
            numbers_of_box = [float(number) for number in value]
    if len(numbers_of_box) != 4 or not all(map(math.isfinite, numbers_of_box)):
        raise BadInput(f"{field} must be four numbers {form}, got {value!r}"[:120])
    first, second, third, fourth = numbers_of_box
    return first, second, third, fourth
