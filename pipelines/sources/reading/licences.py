"""Licences that rows state."""

from collections.abc import Mapping
from typing import Any

from pipelines.records.licence import Licence
from pipelines.sources.reading.values import answer_of, is_absent

OWN_NAMES = {name: name for name in ("licence", "holder", "address")}
"""Field of `Licence` -> the same name, for rows that we define."""


def licence_fields(features: Mapping[str, str]) -> dict[str, str]:
    """Returns field of `Licence` -> name of the column that holds it, for those that are named."""
    return {field: features[field] for field in OWN_NAMES if field in features}


def stated_licence(row: Mapping[str, Any], names: Mapping[str, str] = OWN_NAMES) -> Licence:
    """Returns the licence of a row, each text on one line; what it lacks is not stated.

    Args:
      row: the row.
      names: as `licence_fields` returns them.

    Raises:
      BadInput: if a value is no text, naming the field.
    """
    return Licence(
        **{
            field: " ".join(answer_of(row[name], name).split())
            for field, name in names.items()
            if not is_absent(row.get(name))
        }
    )
