"""Reads the configs of manifests that are older than some of the configs' fields."""

import dataclasses
import functools
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from infra.store.digest import birth_values


def with_births(kind: Any, values: Any) -> Any:
    """Returns a config's plain values, with the fields that they lack at their birth values.

    Args:
      kind: type of the config.
      values: its plain values, as a manifest holds them.
    """
    #   kind              values                          the values in full
    #   TrainConfig       {"b2": 0.99}                    {"b2": 0.99, "z_loss": 0.0}
    #   Watch | None      None                            None
    #   tuple[Group, …]   [{"params": "vision/.*"}]       [{"params": "vision/.*", "lr": 1.0, …}]
    if isinstance(values, Mapping):
        if config := _config_type(kind, values):
            births = {
                name: born[0]
                for name, born in birth_values(config).items()
                if born and (name in values or _is_identity(config, name, values))
            }
            hints = _config_field_types(config)
            return {k: with_births(hints.get(k), v) for k, v in {**births, **values}.items()}
        of_values = next(
            (args[1] for args in _config_generic_arguments(kind, Mapping) if len(args) == 2), None
        )
        return {key: with_births(of_values, value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        args = next(_config_generic_arguments(kind, Iterable), ())
        of_items = args[:1] * len(values) if args[1:] in ((), (...,)) else args
        pairs = zip(of_items or (None,) * len(values), values, strict=False)
        return [with_births(of_item, item) for of_item, item in pairs]
    return values


def _is_identity(config: type[Any], name: str, values: Mapping[str, Any]) -> bool:
    """Returns whether a field is part of a config's identity; see `digest.identity_where`."""
    (field,) = (field for field in dataclasses.fields(config) if field.name == name)
    condition = field.metadata.get("identity", True)
    return not isinstance(condition, str) or values.get(condition) is not None


@functools.cache
def _config_field_types(config: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(config)


def _config_union_types(kind: Any) -> tuple[Any, ...]:
    """Returns the types that a union allows, or the one type."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


def _config_type(kind: Any, values: Mapping[str, Any]) -> type[Any] | None:
    """Returns the config that a type allows for some values; None if they are another mapping."""
    configs = [
        c for c in _config_union_types(kind) if isinstance(c, type) and dataclasses.is_dataclass(c)
    ]
    return next((c for c in configs if birth_values(c).keys() >= values.keys()), None) or next(
        iter(configs), None
    )


def _config_generic_arguments(kind: Any, origin: type[Any]) -> Iterator[tuple[Any, ...]]:
    for choice in _config_union_types(kind):
        generic = typing.get_origin(choice)
        if isinstance(generic, type) and issubclass(generic, origin):
            yield typing.get_args(choice)
