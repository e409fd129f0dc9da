"""Makes typed configs of plain values, and describes what is wrong with these."""

import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import pydantic

_SURE = 0.8
"""Share of letters from which a name is taken for what a misspelt key means."""
_COUNTS = ("total", "num")
"""First words of the names of counts."""


@functools.cache
def config_adapter(kind: type[Any]) -> Any:
    """Returns pydantic's `TypeAdapter` of a dataclass."""
    return pydantic.TypeAdapter(kind)  # Cached: making a study's takes 0.1 s.


def first_problem(error: Any, kind: type[Any]) -> str:
    """Returns the first problem that pydantic reports on a dataclass's values, in one line."""
    problems = error.errors(include_url=False)
    first = problems[0]
    where = ".".join(str(part) for part in first["loc"]) or "the config"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        message = f"no such key{_nearest_field(first, kind)}"
    elif first["type"] != "value_error":
        message = f"{message}, got {first['input']!r}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{where}: {message}{more}"


def first_unbounded(value: Any, where: str = "") -> str | None:
    """Returns the problem with the first infinity or NaN in a config; None if there is none.

    Records and digests are JSON, which has no such numbers.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return f"{where} must be a finite number, got {value}."
    if dataclasses.is_dataclass(value):
        parts = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        parts = [*value.items()]
    elif isinstance(value, list | tuple):
        parts = [*enumerate(value)]
    else:
        return None
    named = ((f"{where}.{name}" if where else str(name), part) for name, part in parts)
    return next((found for name, part in named if (found := first_unbounded(part, name))), None)


def _nearest_field(problem: Any, kind: type[Any]) -> str:
    """Returns a hint, for a misspelt key, with the accepted keys of the object that holds it."""
    # Walk from the study's dataclass along the type hints to the object that holds the key.
    owner: Any = kind
    for part in problem["loc"][:-1]:
        if dataclasses.is_dataclass(owner):
            owner = typing.get_type_hints(owner).get(str(part))
        else:  # An item of a tuple, or a value of a dict.
            owner = next((a for a in reversed(typing.get_args(owner)) if a is not Ellipsis), None)
        if typing.get_origin(owner) in (typing.Union, types.UnionType):
            owner = next(a for a in typing.get_args(owner) if a is not type(None))
    if not dataclasses.is_dataclass(owner):
        return ""
    names = [field.name for field in dataclasses.fields(owner)]
    close = _nearest_name(str(problem["loc"][-1]), names)
    hint = f"; did you mean {close}?" if close else ""
    return f"{hint or '.'} Accepted: {', '.join(names)}"


def _nearest_name(word: str, names: Sequence[str]) -> str:
    """Returns the name that a misspelt key most likely means; "" if there is none near."""
    # Letters alone would take `num_steps` for `num_replicas`. So a name that shares the last word
    # and belongs to the whole is asked for first: `steps`, `num_steps` and `max_steps` are
    # `total_steps`.
    close = difflib.get_close_matches(word, names, n=1, cutoff=_SURE)
    if close:
        return close[0]
    last = word.rpartition("_")[2]
    same = [name for name in names if name.rpartition("_")[2] == last]
    count = [name for name in same if name.partition("_")[0] in _COUNTS]
    near = count or same or difflib.get_close_matches(word, names, n=1)
    return near[0] if near else ""
