"""Typed values of plain ones, by pydantic, where true and false are no numbers."""

from typing import Any


def strict_adapter(kind: Any, config: Any = None) -> Any:
    """Returns pydantic's `TypeAdapter` of a type, in whose numbers booleans are refused.

    Pydantic takes `seed: true` for 1, and its own strict mode would refuse 100.0 and "100", too.

    Args:
      kind: the type.
      config: pydantic's settings.
    """
    import pydantic
    from pydantic_core import SchemaValidator

    adapter = pydantic.TypeAdapter(kind, config=config)
    adapter.validator = SchemaValidator(_without_booleans(adapter.core_schema), config)
    return adapter


def _without_booleans(schema: Any) -> Any:
    """Returns a schema of pydantic-core whose numbers refuse booleans."""
    if isinstance(schema, list):
        return [_without_booleans(part) for part in schema]
    if isinstance(schema, tuple):
        return tuple(_without_booleans(part) for part in schema)
    if not isinstance(schema, dict):
        return schema
    parts = {name: _without_booleans(part) for name, part in schema.items()}
    if schema.get("type") not in ("int", "float"):
        return parts
    return {
        "type": "function-before",
        "function": {"type": "no-info", "function": _refuse_boolean},
        "schema": parts,
    }


def _refuse_boolean(value: Any) -> Any:
    from pydantic_core import PydanticCustomError

    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "Input should be a number, not true or false")
    return value
