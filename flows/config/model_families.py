"""Towers and decoders that a config gives by the name of a family or of a published size.

    stated                                         filled in
    text: gemma3                                   text: {family: gemma3, width: 1152, …}
    text: gemma3-4b                                text: {family: gemma3, width: 2560, …}
    text: {family: gemma3, width: 64, depth: 2}    text: {family: gemma3, width: 64, depth: 2, …}

A family's name stands for its first published size.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from flows.config.validation import config_adapter
from infra.errors import did_you_mean
from model.config import ModelConfig
from model.text.config import TextConfig
from model.text.family import DecoderFamily
from model.text.registry import DECODERS
from model.vision.config import VisionConfig
from model.vision.family import TowerFamily
from model.vision.registry import TOWERS

DEFAULT_PAIR = "paligemma2"
"""Name of the pair of families that a model has by default."""

FAMILIES_BY_PART: dict[str, Mapping[str, TowerFamily] | Mapping[str, DecoderFamily]] = {
    "vision": TOWERS,
    "text": DECODERS,
}
"""Part of a model that has a family -> the families, by name."""


def part_values(value: Any) -> Any:
    """Returns the values of a tower or decoder, where a name alone stands for it."""
    return {"family": value} if isinstance(value, str) else value


def backbone_values(value: Any) -> Any:
    """Returns the values of backbones, name by name, where a list of names stands for them."""
    is_list = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    # One that repeats a name is left for the check.
    return {name: {} for name in value} if is_list and len({*value}) == len(value) else value


def with_part_values(values: dict[str, Any]) -> dict[str, Any]:
    """Returns a config in which no name stands for a tower, a decoder or a backbone.

    Settings can then be laid over it, one by one: `text: gemma3` with `text: {depth: 2}` over it is
    Gemma 3 with two layers.
    """
    model, backbones = values.get("model"), backbone_values(values.get("backbones"))
    if isinstance(model, dict):
        named = {part: part_values(model[part]) for part in FAMILIES_BY_PART if part in model}
        values = {**values, "model": {**model, **named}}
    if isinstance(backbones, dict):
        named = {
            name: with_part_values(backbone) if isinstance(backbone, dict) else backbone
            for name, backbone in backbones.items()
        }
        values = {**values, "backbones": named}
    return values


def with_family(part: str, stated: Mapping[str, Any], field: str = "") -> dict[str, Any]:
    """Returns the values of a tower or decoder, with those of the size that its family names.

    Args:
      part: "vision" or "text".
      stated: what the config states; without a family it is left as it is.
      field: what states the family, for errors; "" is the config's key.

    Raises:
      ValueError: if there is no such family or size; names all, and the nearest.
    """
    families, name = FAMILIES_BY_PART[part], stated.get("family")
    if name is None:
        return dict(stated)
    if family := family_of(part, name):
        sizes = families[family].sizes
        return {**sizes[name if name in sizes else next(iter(sizes))], **stated, "family": family}
    sizes = [size for facts in families.values() for size in facts.sizes]
    hint = did_you_mean(name, _family_and_size_names(part), cutoff=0.5) or "."
    raise ValueError(
        f"{field or f'model.{part}.family'} must be a family, {', '.join(families)}, or a "
        f"published size, {', '.join(sizes)}, got {name!r}{hint}"
    )


def family_of(part: str, name: str) -> str:
    """Returns the family of a family's or a published size's name; "" if there is none."""
    for family, facts in FAMILIES_BY_PART[part].items():
        if name == family or name in facts.sizes:
            return family
    return ""


def parts_of_name(name: str) -> dict[str, str]:
    """Returns part -> name of a family or size, as the name of a backbone says; {} if it says none.

    "siglip2+gemma3-4b" is {"vision": "siglip2", "text": "gemma3-4b"}.
    """
    if name == DEFAULT_PAIR:
        return {"vision": VisionConfig.family, "text": TextConfig.family}
    vision, _, text = name.partition("+")
    if family_of("vision", vision) and family_of("text", text):
        return {"vision": vision, "text": text}
    return {}


def check_backbone_name(name: str, stated: Mapping[str, Any]) -> None:
    """Refuses the name of a backbone that says no tower and decoder, if nothing else does.

    Args:
      name: the name.
      stated: what the backbone states.

    Raises:
      ValueError: with the accepted names, and the nearest.
    """
    if parts_of_name(name) or (stated.get("model") if "+" in name else stated):
        return
    names = [
        DEFAULT_PAIR,
        *(
            f"{v}+{t}"
            for v in _family_and_size_names("vision")
            for t in _family_and_size_names("text")
        ),
    ]
    hint = did_you_mean(name, names) or "."
    raise ValueError(
        f"backbones.{name} must state its model, or be named {DEFAULT_PAIR} or VISION+TEXT, a "
        f"tower ({', '.join(TOWERS)}) and a decoder ({', '.join(DECODERS)}) or published sizes of "
        f"them{hint}"
    )


def with_backbone_parts(
    name: str, stated: Mapping[str, Any], study: Mapping[str, Any], vocab_size: int | None
) -> dict[str, Any]:
    """Returns the values of a backbone's model, with those that its name and families decide.

    A part of the study's own family, or of none that is named, begins with the study's values. A
    part that is the study's as it stands is left out.

    Args:
      name: the backbone's name.
      stated: values of `BackboneModel` as the backbone states them.
      study: values of the study's model, as stated.
      vocab_size: rows of a decoder that is given by name; None takes the published size's.

    Raises:
      ValueError: if name and values differ, or there is no such family.
    """
    named, model = parts_of_name(name), dict(stated)
    for part, kind in (("vision", VisionConfig), ("text", TextConfig)):
        of_part, of_study = stated.get(part, {}), study.get(part, {})
        field = f"backbones.{name}.model.{part}.family"
        family = of_part.get("family", named.get(part))
        if named and family_of(part, family) not in ("", family_of(part, named[part])):
            raise ValueError(
                f"{field} must be {named[part]}, as the backbone's name says, got {family}; name "
                f"the backbone otherwise."
            )
        #   the study's text: {family: gemma3, width: 64}
        #   siglip2+gemma3: {}                        the study's
        #   mine: {model: {text: {depth: 2}}}         {family: gemma3, width: 64, depth: 2}
        #   siglip2+llama: {}                         Llama's first size
        if family in (None, family_of(part, of_study.get("family", kind.family))):
            if of_part.keys() <= {"family"}:
                model.pop(part, None)
                continue
            of_part = {**of_study, **{k: v for k, v in of_part.items() if k != "family"}}
        else:
            of_part = {**of_part, "family": family}
        if part == "text" and "family" in of_part and vocab_size is not None:
            of_part = {"vocab_size": vocab_size, **of_part}
        model[part] = with_family(part, of_part, field)
    return model


def _family_and_size_names(part: str) -> list[str]:
    families = FAMILIES_BY_PART[part]
    return [*families, *(size for facts in families.values() for size in facts.sizes)]


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
