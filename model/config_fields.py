"""Reading of the fields of another codebase's `config.json`."""

from collections.abc import Mapping
from typing import Any

HuggingFaceConfig = Mapping[str, Any]
"""A section of transformers' `config.json`: of a tower, of a decoder."""


def check_fixed(section: HuggingFaceConfig, name: str, fixed: Mapping[str, Any]) -> None:
    """Checks settings that are built into our model.

    Args:
      section: the section.
      name: its name, for the error.
      fixed: field -> the only accepted value, which is also transformers' default.

    Raises:
      ValueError: if a field has another value.
    """
    for field, accepted in fixed.items():
        value = section.get(field, accepted)
        if value != accepted:
            raise ValueError(f"config.json: {name}.{field} must be {accepted}, got {value}.")
