"""What of a model's families and prompt template is code of the steps that name them.

Their registries are not entered (see `flows.steps.registry`): a new family leaves every artifact as
it is, and an edit of a family's facts concerns its own steps.
"""

from typing import Any

from model.prompt.registry import PALIGEMMA, PROMPTS, prompt_facts
from model.text.registry import DECODERS, decoder_facts
from model.vision.registry import TOWERS, tower_facts

VISION, TEXT = "siglip", "gemma2"
"""The families of models in manifests that name none: they are older than the other families."""

PROMPT = PALIGEMMA
"""Their prompt template, likewise."""

FAMILY_REGISTRIES = tuple(facts.__module__ for facts in (tower_facts, decoder_facts, prompt_facts))


def family_entries(vision: str, text: str, prompt: str = PROMPT) -> dict[str, Any]:
    """Returns registry -> the facts of a tower's and a decoder's family, and of a prompt template.

    Of an unknown one they are {}.
    """
    tower, decoder, template = FAMILY_REGISTRIES
    return {
        tower: tower_facts(vision) if vision in TOWERS else {},
        decoder: decoder_facts(text) if text in DECODERS else {},
        template: prompt_facts(prompt) if prompt in PROMPTS else {},
    }


def model_entries(model: Any, prompt: str | None = None) -> dict[str, Any]:
    """Returns the `family_entries` of a `ModelConfig` as plain values.

    Args:
      model: the model's config.
      prompt: the prompt template that it is trained in; None is its own.
    """
    vision, text = (model.get(part, {}).get("family") for part in ("vision", "text"))
    own = model.get("prompt") or PROMPT
    return family_entries(vision or VISION, text or TEXT, prompt or own)


def conversion_modules(vision: str, text: str) -> tuple[str, ...]:
    """Returns the modules that say how other codebases name and set up two families."""
    rooms = f"model.vision.{vision}", f"model.text.{text}"
    return tuple(f"{room}.{module}" for room in rooms for module in ("names", "hugging_face"))
