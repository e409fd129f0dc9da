"""What of the families of a model's tower and decoder is code of the steps that name them.

Their registries are not entered (see `flows.steps.registry`): a new family leaves every artifact as
it is, and an edit of a family's facts concerns its own steps.
"""

from typing import Any

from model.text.registry import DECODERS, decoder_facts
from model.vision.registry import TOWERS, tower_facts

VISION, TEXT = "siglip", "gemma2"
"""The families of models in manifests that name none: they are older than the other families."""

FAMILY_REGISTRIES = (tower_facts.__module__, decoder_facts.__module__)


def family_entries(vision: str, text: str) -> dict[str, Any]:
    """Returns registry -> the facts of a tower's and a decoder's family; {} of an unknown one."""
    tower, decoder = FAMILY_REGISTRIES
    return {
        tower: tower_facts(vision) if vision in TOWERS else {},
        decoder: decoder_facts(text) if text in DECODERS else {},
    }


def model_entries(model: Any) -> dict[str, Any]:
    """Returns the `family_entries` of a `ModelConfig` as plain values."""
    vision, text = (model.get(part, {}).get("family") for part in ("vision", "text"))
    return family_entries(vision or VISION, text or TEXT)


def conversion_modules(vision: str, text: str) -> tuple[str, ...]:
    """Returns the modules that say how other codebases name and set up two families."""
    rooms = f"model.vision.{vision}", f"model.text.{text}"
    return tuple(f"{room}.{module}" for room in rooms for module in ("names", "hugging_face"))
