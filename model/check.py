"""The check that every configuration of this package runs on its numbers."""

import dataclasses
from typing import Any


def check_positive(config: Any, path: str, zero_ok: tuple[str, ...] = ()) -> None:
    """Raises ValueError unless every number of a dataclass is above 0.

    Args:
      config: the dataclass to check; fields that are not numbers are skipped.
      path: the config's key in a study's file, for the error message.
      zero_ok: names of the fields that may be 0.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if value < 0 or (value == 0 and field.name not in zero_ok):
            raise ValueError(f"{path}.{field.name} must be positive, got {value}.")
