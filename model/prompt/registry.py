"""The registry of prompt templates.

This module is no part of a step's code, which takes from it the facts of the template that the
step's config names. So a new template leaves every artifact as it is.
"""

import dataclasses
import typing

from model.prompt.template import PromptTemplate

PALIGEMMA = "paligemma"
"""The template of models in manifests that name none: they are older than the others."""

PROMPTS: dict[str, PromptTemplate] = {
    # Source: big_vision `configs/proj/paligemma/transfers/common.py`.
    PALIGEMMA: PromptTemplate(causal=False),
    # Source: haotian-liu/LLaVA `llava/conversation.py` (conv_vicuna_v1), `llava/mm_utils.py`
    # (tokenizer_image_token) and `llava/train/train.py` (preprocess_v1).
    "llava": PromptTemplate(
        lead="A chat between a curious user and an artificial intelligence assistant. The "
        "assistant gives helpful, detailed, and polite answers to the user's questions. USER: ",
        opening="\n",
        closing=" ASSISTANT:",
        gap=" ",
        again="USER: ",
    ),
    # The same, conv_llava_plain and preprocess_plain: captions, for the projector alone.
    "llava-plain": PromptTemplate(lead="", closing="", reads_question=False, end="\n"),
}


def prompt_template(name: str) -> PromptTemplate:
    """Returns a template by its name.

    Raises:
      ValueError: if there is none.
    """
    if name not in PROMPTS:
        raise ValueError(f"prompt must be one of {', '.join(PROMPTS)}, got {name!r}.")
    return PROMPTS[name]


def prompt_facts(name: str) -> dict[str, typing.Any]:
    """Returns the facts of a template, all of which decide bytes."""
    return dataclasses.asdict(prompt_template(name))
