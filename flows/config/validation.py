"""Makes typed configs of plain values, and describes what is wrong with these."""

import dataclasses
import difflib
import functools
import math
import operator
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from infra.errors import did_you_mean
from infra.strict_adapter import strict_adapter

_SURE = 0.8
"""Share of letters from which a name is taken for what a misspelt key means."""
_COUNTS = ("total", "num")
"""First words of the names of counts."""


@functools.cache
def config_adapter(kind: type[Any]) -> Any:
    """Returns pydantic's `TypeAdapter` of a dataclass; booleans are no numbers for it."""
    return strict_adapter(kind)  # Cached: making a study's takes 0.1 s.


@functools.cache
def partial_adapter(kind: type[Any]) -> Any:
    """Returns pydantic's `TypeAdapter` of what is stated of a dataclass, with its keys and types.

    The values stay plain: fields that are left out are not filled in, and no dataclass is made, so
    what these check as they are made is still to be checked.

        StageConfig, {name: own, train: {epochs: "3"}}   ─▶   {name: "own", train: {epochs: 3.0}}
    """
    return strict_adapter(_partial_config_type(kind))


def _partial_config_type(kind: Any) -> Any:
    """Returns a type, with a mapping of some of its fields in the place of each dataclass in it."""
    if dataclasses.is_dataclass(kind):
        return _partial_dataclass(kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (None, typing.Literal):
        return kind
    if origin is Annotated:
        return Annotated[_partial_config_type(args[0]), *args[1:]]
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, map(_partial_config_type, args))
    if origin is dict:  # Of any names: what refuses one later knows the nearest.
        return dict[str, _partial_config_type(args[1])]
    return origin[tuple(map(_partial_config_type, args))]


@functools.cache  # One type for each, of which pydantic makes one validator.
def _partial_dataclass(kind: Any) -> Any:
    from typing_extensions import TypedDict  # Here: most commands read no config.

    typed_dict: Any = TypedDict  # Its static type wants the fields written out.
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {
        field.name: _partial_config_type(hints[field.name]) for field in dataclasses.fields(kind)
    }
    # Of the same name: errors in a value of several types have it on their path.
    partial = typed_dict(kind.__name__, fields, total=False)
    partial.__pydantic_config__ = {"extra": "forbid"}
    return partial


def first_problem(error: Any, kind: type[Any]) -> str:
    """Returns the first problem that pydantic reports on a dataclass's values, in one line."""
    problems = error.errors(include_url=False)
    first = problems[0]
    path, owner = _path_and_owner(first["loc"], kind)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        message = f"no such key{_nearest_field(path[-1], owner)}"
    elif first["type"] != "value_error":
        message = _describe_config_problem(first, path)
    # What another type of a value with several lacks is no problem of its own.
    others = [_path_and_owner(problem["loc"], kind)[0] for problem in problems[1:]]
    num_more = sum(path[: len(other)] != other for other in others)
    more = f" (and {num_more} more)" if num_more else ""
    return f"{'.'.join(path) or 'the config'}: {message}{more}"


def _describe_config_problem(problem: Mapping[str, Any], path: Sequence[str]) -> str:
    """Returns a problem of a value's type or form, with what is accepted and how to write it."""
    value, of = problem["input"], problem.get("ctx", {})
    got = f", got {value!r}"
    key = ".".join(path) or "KEY"
    match problem["type"]:
        case "tuple_type" | "list_type" | "set_type":
            # Of a text, its words are most likely the items that are meant.
            items = value.replace(",", " ").split() if isinstance(value, str) else [value]
            plain = all(isinstance(item, str | int | float) for item in items)
            cure = f"; write {key}=[{', '.join(map(str, items))}]" if plain else ""
            return f"must be a list{got}{cure}"
        case "dict_type" | "dataclass_type" | "mapping_type":
            return f"must be a mapping, as {{key: value}}{got}"
        case "string_pattern_mismatch":
            pattern = of["pattern"]
            return f"must be {_PATTERNS.get(pattern, f'of the form {pattern}')}{got}"
        case "string_too_long":
            return f"must have at most {of['max_length']} characters, and has {len(value)}{got:.80}"
        case "literal_error":
            # As pydantic lists them: "'a', 'b' or 'c'".
            names = re.findall(r"'([^']+)'", of["expected"])
            hint = did_you_mean(value, names) if isinstance(value, str) else ""
            return f"must be one of {', '.join(names) or of['expected']}{got}{hint}"
        case "int_parsing" | "int_type" | "int_from_float":
            return f"must be a whole number{got}"
        case "float_parsing" | "float_type":
            return f"must be a number{got}"
        case "bool_parsing" | "bool_type":
            return f"must be true or false{got}"
        case "string_type":
            return f"must be a text{got}; in YAML, put it in quotes"
    # Bounds have their limit: "Input should be greater than or equal to 1".
    return f"{problem['msg'].replace('Input should', 'must')}{got}"


_SIGNS = "small letters, digits"
_PATTERNS = {
    r"^[a-z0-9][a-z0-9-]*$": f"{_SIGNS} and -, and begin with a letter or digit",
    r"^[a-z0-9][a-z0-9.+_-]*$": f"{_SIGNS}, ., +, _ and -, and begin with a letter or digit",
    r"^[a-z][a-z0-9_-]*$": f"{_SIGNS}, _ and -, and begin with a letter",
    r"^[a-z][a-z0-9-]*$": f"{_SIGNS} and -, and begin with a letter",
}
"""Pattern of a text in a config -> what it accepts, in words."""


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


def nearest_key(name: str, kind: type[Any]) -> str:
    """Returns the key of a config that a misspelt one means beyond doubt; "" if there is none."""
    return _sure_name(name, [field.name for field in dataclasses.fields(kind)])


def _nearest_field(name: str, owner: Any) -> str:
    """Returns a hint, for a misspelt key, with the accepted keys of the object that holds it."""
    if not dataclasses.is_dataclass(owner):
        return ""
    names = [field.name for field in dataclasses.fields(owner)]
    close = _nearest_name(name, names)
    hint = f"; did you mean {close}?" if close else ""
    return f"{hint or '.'} Accepted: {', '.join(names)}"


def _sure_name(word: str, names: Sequence[str]) -> str:
    """Returns the name that a misspelt key means beyond doubt; "" if there is none."""
    if f"num_{word}" in names:  # `seeds` is a count, though `seed` is nearer.
        return f"num_{word}"
    close = difflib.get_close_matches(word, names, n=1, cutoff=_SURE)
    return close[0] if close else ""


def _nearest_name(word: str, names: Sequence[str]) -> str:
    """Returns the name that a misspelt key most likely means; "" if there is none near."""
    # Letters alone would take `num_steps` for `num_replicas`. So a name that shares the last word
    # and belongs to the whole is asked for first: `steps`, `num_steps` and `max_steps` are
    # `total_steps`.
    if sure := _sure_name(word, names):
        return sure
    last = word.rpartition("_")[2]
    same = [name for name in names if name.rpartition("_")[2] == last]
    count = [name for name in same if name.partition("_")[0] in _COUNTS]
    near = count or same or difflib.get_close_matches(word, names, n=1)
    return near[0] if near else ""
