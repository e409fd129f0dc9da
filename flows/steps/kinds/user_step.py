"""An artifact of a step of the user's own, named in the `steps` of a config.

A step is a dataclass: its fields are its settings, `nodes` says which steps it adds to a study, and
`make` makes the artifact of any of them.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Dedup:
        dataset: str = "prepare mixture/web"

        def nodes(self, study, steps):
            web = steps[self.dataset]
            yield NewStep(name="dedup web", inputs={"data": web}, makes="dataset", replaces=web)

        def make(self, work):
            ...  # From work.inputs["data"] into work.out.

Files:
  *: whatever the step wrote; records and parameters as a dataset and a checkpoint have them
"""

import dataclasses
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from flows.steps.kind import Kind, Step, StepContext
from infra.progress import Progress
from infra.references import load_reference
from infra.strict_adapter import strict_adapter

Makes = Literal["dataset", "checkpoint", "files"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewStep:
    """A step that a user's class adds to a study.

    Attributes:
      name: its name for people, unique in the study: "dedup web".
      inputs: role -> the step whose artifact it reads.
      makes: "dataset" for prepared records, "checkpoint" for parameters, "files" for anything else.
      replaces: the step instead of which all later ones read this one; None adds it beside them.
      seed: seed of every random draw; None where nothing is drawn.
      accelerator: whether it computes on the GPUs or TPUs of a cell, where there are any.
    """

    name: str
    inputs: Mapping[str, Step] = dataclasses.field(default_factory=dict)
    makes: Makes = "files"
    replaces: Step | None = None
    seed: int | None = None
    accelerator: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class UserStepSpec:
    """A user's class and its settings.

    Attributes:
      step: the class, as "module:Class".
      settings: the settings that the config states; the others have the defaults of the class.
    """

    step: str
    settings: Mapping[str, Any]


def step_class(reference: str) -> type[Any]:
    """Returns a user's class, "module:Class".

    Raises:
      ValueError: if it is missing, or is no step; in one line.
    """
    found = load_reference(reference)
    is_step = isinstance(found, type) and dataclasses.is_dataclass(found)
    if not is_step or not all(callable(getattr(found, name, None)) for name in ("nodes", "make")):
        raise ValueError(
            f"{reference} must be a dataclass with the methods nodes(study, steps) and make(work), "
            f"got {found!r:.60}."
        )
    return found


def step_with_settings(step: type[Any], settings: Mapping[str, Any]) -> Any:
    """Returns a user's step with its settings, which are plain values.

    Raises:
      ValidationError: if a setting is unknown, or has a wrong value.
    """
    # In a tuple, since pydantic takes the settings of a dataclass from the class alone; this one
    # reaches nested dataclasses, too.
    alone: Any = types.GenericAlias(tuple, (step,))
    adapter = strict_adapter(alone, {"extra": "forbid"})
    return adapter.validate_python((dict(settings),))[0]


def make(work: StepContext) -> Iterator[Progress]:
    """Calls `make` of the class in a `UserStepSpec`, which may yield progress or return at once."""
    spec: UserStepSpec = work.config
    progress = step_with_settings(step_class(spec.step), spec.settings).make(work)
    if progress is not None:
        yield from progress


def _class_name(config: UserStepSpec | Mapping[str, Any]) -> str:
    return config.step if isinstance(config, UserStepSpec) else config["step"]


def _user_step_kind(makes: Makes) -> Kind:
    return Kind(
        name=f"user_{makes}",
        make=make,
        spec=UserStepSpec,
        functions=lambda spec: [spec["step"]],
        holds=makes,
        sample="with it in what a step of the user's own read",
        sort=_class_name,  # Such steps have little in common but the class.
    )


USER_DATASET, USER_CHECKPOINT, USER_FILES = map(_user_step_kind, ("dataset", "checkpoint", "files"))
