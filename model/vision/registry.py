"""The registry of tower families: a folder each, named here and nowhere else.

This module is no part of a step's code; see `model.text.registry`.
"""

import dataclasses
import typing

from infra.references import load_reference
from model.layouts import ParameterName
from model.vision.clip.family import FAMILY as CLIP
from model.vision.family import TowerFamily
from model.vision.siglip.family import FAMILY as SIGLIP
from model.vision.siglip2.family import FAMILY as SIGLIP2

TOWERS: dict[str, TowerFamily] = {"siglip": SIGLIP, "siglip2": SIGLIP2, "clip": CLIP}


def tower_family(name: str) -> TowerFamily:
    """Returns a family by its name.

    Raises:
      ValueError: if there is none.
    """
    if name not in TOWERS:
        raise ValueError(f"vision.family must be one of {', '.join(TOWERS)}, got {name!r}.")
    return TOWERS[name]


def tower_facts(name: str) -> dict[str, typing.Any]:
    """Returns those facts of a family that decide bytes, which its published sizes do not."""
    facts = dataclasses.asdict(tower_family(name))
    del facts["sizes"]
    return facts


def tower_names(name: str) -> tuple[ParameterName, ...]:
    """Returns a family's table of parameter names."""
    return load_reference(f"model.vision.{name}.names:NAMES")


def unused_names(name: str) -> str:
    """Returns what names in a family's tower begin with that features do not pass."""
    return load_reference(f"model.vision.{name}.names:UNUSED")
