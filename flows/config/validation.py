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
    path, owner = _path_and_owner(first["loc"], kind)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        message = f"no such key{_nearest_field(path[-1], owner)}"
    elif first["type"] != "value_error":
        message = f"{message}, got {first['input']!r}"
    # What another type of a value with several lacks is no problem of its own.
    others = [_path_and_owner(problem["loc"], kind)[0] for problem in problems[1:]]
    num_more = sum(path[: len(other)] != other for other in others)
    more = f" (and {num_more} more)" if num_more else ""
    return f"{'.'.join(path) or 'the config'}: {message}{more}"


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


def _path_and_owner(loc: Sequence[str | int], kind: type[Any]) -> tuple[list[str], Any]:
    """Returns the keys to a place of a dataclass's values, and the type that has the last one."""
    # Walk from the dataclass along the type hints. Of a value with several types, pydantic names
    # the one that it tried, which is no key:
    #
    #   ("backbones", "mine", "stage1", "TrainConfig", "pek_lr")  ->  backbones.mine.stage1.pek_lr
    path: list[str] = []
    owner: Any = None
    found: Any = kind
    for part in map(str, loc):
        choices = [choice for choice in _types_of(found) if choice is not type(None)]
        if len(choices) > 1:
            found = next((c for c in choices if getattr(c, "__name__", "") == part), None)
            continue
        owner = choices[0] if choices else None
        path.append(part)
        if dataclasses.is_dataclass(owner):
            found = typing.get_type_hints(owner).get(part)
        else:  # An item of a tuple, or a value of a dict.
            found = next((a for a in reversed(typing.get_args(owner)) if a is not Ellipsis), None)
    return path, owner


def _types_of(kind: Any) -> Sequence[Any]:
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else [kind]


def _nearest_field(name: str, owner: Any) -> str:
    """Returns a hint, for a misspelt key, with the accepted keys of the object that holds it."""
    if not dataclasses.is_dataclass(owner):
        return ""
    names = [field.name for field in dataclasses.fields(owner)]
    close = _nearest_name(name, names)
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
