"""Conversion of frozen dataclasses to JSON and back."""

import dataclasses
import json
import types
import typing
from typing import Any, TypeVar

_T = TypeVar("_T")


def config_to_json(config: Any) -> str:
    """Returns a nested dataclass as JSON, keys sorted."""
    return json.dumps(dataclasses.asdict(config), indent=1, sort_keys=True) + "\n"


def config_from_json(cls: type[_T], text: str) -> _T:
    """Returns the dataclass that a JSON text describes; its `__post_init__` checks it as usual.

    Raises:
      ValueError: if a key is unknown.
    """
    return _build(cls, json.loads(text))


def _build(hint: Any, value: Any) -> Any:
    """Returns a JSON value as its type hint wants it: dataclasses and tuples are rebuilt."""
    # JSON knows neither tuples nor classes, so the hints say what a value was:
    #
    #     hint                value             result
    #     tuple[int, ...]     [16, 64]          (16, 64)
    #     ConnectorConfig     {"kind": "mqt"}   ConnectorConfig(kind="mqt")
    #     VisionConfig | None null              None
    if value is None:
        return None
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        # `X | None`: null has returned above, so the value is an X.
        (hint,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
        return _build(hint, value)
    if origin is typing.Annotated:
        return _build(typing.get_args(hint)[0], value)
    if origin is tuple:
        args = typing.get_args(hint)
        hints = [args[0]] * len(value) if args[-1] is Ellipsis else args
        return tuple(_build(arg, item) for arg, item in zip(hints, value, strict=True))
    if not dataclasses.is_dataclass(hint):
        return value
    hints = typing.get_type_hints(hint)
    # Refused and not dropped: a field that this version does not know may change the model.
    unknown = set(value) - set(hints)
    if unknown:
        raise ValueError(f"{hint} has no field {sorted(unknown)}; accepted: {sorted(hints)}.")  # type: ignore[attr-defined]
    return hint(**{key: _build(hints[key], item) for key, item in value.items()})  # type: ignore[operator]
