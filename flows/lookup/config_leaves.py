"""Configs as flat tables of their values, to compare two of them."""

from typing import Any


def config_leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Returns dotted path -> value for nested dicts; a list is one value."""
    if not isinstance(value, dict):
        return {path: value}
    values: dict[str, Any] = {}
    for key, inner in value.items():
        values |= config_leaves(inner, f"{path}.{key}" if path else str(key))
    return values
