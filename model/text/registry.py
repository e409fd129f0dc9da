"""The registry of decoder families: a folder each, named here and nowhere else.

This module is no part of a step's code, which takes from it the facts of the family that the
step's config names. So a new family leaves every artifact as it is.
"""

import dataclasses
import typing

from infra.references import load_reference
from model.layouts import ParameterName
from model.text.family import DecoderFamily
from model.text.gemma2.family import FAMILY as GEMMA2
from model.text.gemma3.family import FAMILY as GEMMA3
from model.text.llama.family import FAMILY as LLAMA

DECODERS: dict[str, DecoderFamily] = {"gemma2": GEMMA2, "gemma3": GEMMA3, "llama": LLAMA}


def decoder_family(name: str) -> DecoderFamily:
    """Returns a family by its name.

    Raises:
      ValueError: if there is none.
    """
    if name not in DECODERS:
        raise ValueError(f"text.family must be one of {', '.join(DECODERS)}, got {name!r}.")
    return DECODERS[name]


def decoder_facts(name: str) -> dict[str, typing.Any]:
    """Returns those facts of a family that decide bytes, which its published sizes do not."""
    facts = dataclasses.asdict(decoder_family(name))
    del facts["sizes"]
    return facts


def decoder_names(name: str) -> tuple[ParameterName, ...]:
    """Returns a family's table of parameter names."""
    return load_reference(f"model.text.{name}.names:NAMES")
