"""A level at which a certificate is checked; levels are never mixed into one verdict."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

SIGNED, CONSISTENT, TRACED, REMADE = "signed", "consistent", "traced", "re-made"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
    """The outcome of one level.

    Attributes:
      name: name of the level.
      state: its outcome.
      detail: what was checked, what is wrong, or why nothing was checked.
    """

    name: str
    state: Literal["passed", "failed", "not checked"]
    detail: str


def level_of(name: str, problems: Sequence[str], detail: str) -> Level:
    """Returns a level that failed if there are problems, with the first of them."""
    if not problems:
        return Level(name=name, state="passed", detail=detail)
    more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
    return Level(name=name, state="failed", detail=f"{problems[0]}{more}")
