"""Towers and decoders that a config gives by the name of a family or of a published size.

    stated                                         filled in
    text: gemma3                                   text: {family: gemma3, width: 1152, …}
    text: gemma3-4b                                text: {family: gemma3, width: 2560, …}
    text: {family: gemma3, width: 64, depth: 2}    text: {family: gemma3, width: 64, depth: 2, …}

A family's name stands for its first published size.
"""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from flows.config.validation import config_adapter
from model.config import ModelConfig
from model.text.config import TextConfig
from model.text.family import DecoderFamily
from model.text.registry import DECODERS
from model.vision.config import VisionConfig
from model.vision.family import TowerFamily
from model.vision.registry import TOWERS

PARTS: dict[str, Mapping[str, TowerFamily] | Mapping[str, DecoderFamily]] = {
    "vision": TOWERS,
    "text": DECODERS,
}
"""Part of a model that has a family -> the families, by name."""


def part_values(value: Any) -> Any:
    """Returns the values of a tower or decoder, where a name alone stands for it."""
    return {"family": value} if isinstance(value, str) else value


def with_part_values(values: dict[str, Any]) -> dict[str, Any]:
    """Returns a config in which no name stands for a tower or decoder.

    Settings can then be laid over it, one by one: `text: gemma3` with `text: {depth: 2}` over it is
    Gemma 3 with two layers.
    """
    model = values.get("model")
    if not isinstance(model, dict):
        return values
    named = {part: part_values(model[part]) for part in PARTS if part in model}
    return {**values, "model": {**model, **named}}


def with_family(part: str, stated: Mapping[str, Any], field: str = "") -> dict[str, Any]:
    """Returns the values of a tower or decoder, with those of the size that its family names.

    Args:
      part: "vision" or "text".
      stated: what the config states; without a family it is left as it is.
      field: what states the family, for errors; "" is the config's key.

    Raises:
      ValueError: if there is no such family or size; names all, and the nearest.
    """
    families, name = PARTS[part], stated.get("family")
    if name is None:
        return dict(stated)
    for family, facts in families.items():
        size = next(iter(facts.sizes)) if name == family else name
        if size in facts.sizes:
            return {**facts.sizes[size], **stated, "family": family}
    sizes = [size for facts in families.values() for size in facts.sizes]
    close = difflib.get_close_matches(name, [*families, *sizes], n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]}?" if close else "."
    raise ValueError(
        f"{field or f'model.{part}.family'} must be a family, {', '.join(families)}, or a "
        f"published size, {', '.join(sizes)}, got {name!r}{hint}"
    )


def with_pair(model: ModelConfig, vision: str | None, text: str | None) -> ModelConfig:
    """Returns a model with another tower or decoder, by family or published size.

    Its connector declares no shapes any more: those were for another number of patches.

    Args:
      model: the model.
      vision: name for the tower; None keeps it.
      text: name for the decoder; None keeps it.

    Raises:
      ValueError: if there is none of that name, or the connector does not fit the tower.
    """
    changes: dict[str, Any] = {}
    for part, name, kind in (("vision", vision, VisionConfig), ("text", text, TextConfig)):
        if name is not None:
            values = with_family(part, {"family": name}, f"--{part}")
            changes[part] = config_adapter(kind).validate_python(values)
    if "vision" in changes:
        changes["connector"] = dataclasses.replace(model.connector, buckets=())
    if "text" in changes and not DECODERS[changes["text"].family].softcaps:
        changes |= {"attn_softcap": 0.0, "final_softcap": 0.0}
    return dataclasses.replace(model, **changes)
