"""Texts and absent values of rows: the one place that says what a text is, for every reader."""

import numbers
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

from pipelines.records.schema import BadInput

_MARK = "\ufeff"
"""Byte order mark; programs on Windows put it before a text, and it is no part of it."""

_EXACT = 1e15
"""Floats below it hold whole numbers exactly."""


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
    """Returns a text, without a byte order mark; bytes are UTF-8.

    Raises:
      BadInput: if it is none, naming the field and the value.
    """
    if isinstance(value, str):
        return value.lstrip(_MARK)
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8").lstrip(_MARK)
        except UnicodeDecodeError:
            raise BadInput(f"{field} is not UTF-8") from None
    raise BadInput(f"{field} must be a text, got {value!r}"[:120])


def answer_of(value: object, field: str) -> str:
    """Returns an answer, which may be a number: 2 and 2.0 are "2".

    Raises:
      BadInput: if it is neither a text nor a number, naming the field and the value.
    """
    is_number = isinstance(value, numbers.Real | Decimal) and not isinstance(value, bool)
    number = cast(Any, value)
    if not is_number or is_absent(value) or abs(number) == float("inf"):
        return text_of(value, field)
    # A column of counts in which one is missing is a column of floats.
    if abs(number) < _EXACT and number == int(number):
        return str(int(number))
    return str(number)


def language_of(value: object, field: str) -> str:
    """Returns the language under `field`; "en" where none is given.

    Raises:
      BadInput: as in `text_of`.
    """
    return "en" if is_absent(value) else text_of(value, field) or "en"
