"""Steps of the user's own in a config: their classes and settings."""

import dataclasses
from typing import Annotated, Any

import pydantic
from pydantic import BeforeValidator

from flows.config.references import step_reference
from flows.config.validation import first_problem
from flows.steps.kinds.user_step import step_class, step_with_settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class UserStep:
    """A step of the user's own, which adds nodes to the study's graph.

    Attributes:
      step: its class: "file.py:Class", "module:Class" or an entry point of `parcel.steps`.
      settings: values of the class's fields; those that are left out have the class's defaults.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    step: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)


def _step_of_name(value: Any) -> Any:
    return {"step": value} if isinstance(value, str) else value


StatedStep = Annotated[UserStep, BeforeValidator(_step_of_name)]
"""A step, which a config may state as its class alone."""


def load_user_step(field: str, entry: UserStep) -> tuple[str, Any]:
    """Returns the class of a user's step as steps name it, and the step with its settings.

    Args:
      field: config key of the entry, for errors.
      entry: the entry.

    Raises:
      ValueError: naming the field, its value and what is accepted.
    """
    reference = step_reference(f"{field}.step", entry.step)
    step = step_class(reference)
    try:
        return reference, step_with_settings(step, entry.settings)
    except pydantic.ValidationError as error:
        # The step is the only member of a tuple: "0.share: …" is what pydantic says of its field.
        problem = first_problem(error, tuple[step]).removeprefix("0.").removeprefix("0: ")
        raise ValueError(f"{field}.settings.{problem}") from None
