"""The config of a whole study: data, model, stages, transfers, methods × budgets × seeds."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from flows.config.backbone import BackboneConfig
from flows.config.model_families import with_part_values
from flows.config.normalise import normalise
from flows.config.references import offered_connectors
from flows.config.tracker import Tracker
from flows.config.user_step import StatedStep, load_user_step
from flows.config.validation import partial_adapter
from flows.report.cell_text import drawn_budgets_text
from flows.study.resolve import resolve_study
from flows.study.settings import StudySettings
from flows.study.view import StudyView
from flows.study.view_checks import check_names

BackboneName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+_-]*$", max_length=60)]


def _refuse_list(value: Any) -> Any:
    # One of distinct names is a mapping by now, by `with_part_values`.
    if isinstance(value, list | tuple):
        raise ValueError(f"backbones must be distinct names, or a mapping, got {value}.")
    return value


def offer_connectors(schema: dict[str, Any]) -> None:
    """Adds the connectors that have a name to the JSON schema of a method, for forms to offer."""
    schema["enum"] = offered_connectors()


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyConfig(StudySettings):
    """Methods × benchmarks × seeds × budgets, from raw data to the results table.

    Attributes:
      backbones: name -> a tower and a decoder to compare the methods on, with what else differs;
        a list of names VISION+TEXT is the short form. Each is a study of its own in one table, and
        retention is against vanilla of the same backbone. Without any, the study has `model`.
      steps: steps of your own: "file.py:Class", "module:Class", or {step: …, settings: {…}}.
      paper: whether the study is meant to be the paper's. What it does otherwise, and what is ours
        where the paper says nothing, is then counted at each run, and listed by `--explain`.
      track: trackers that show the study's runs, too: mlflow, wandb. They are told by environment
        variables of theirs where to write; never part of a result's identity.
      statements: the keys that the file, the command or the form states, with their values; filled
        in automatically, so that a value of the user's can be told from a default or a recipe.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    backbones: Annotated[dict[BackboneName, BackboneConfig], BeforeValidator(_refuse_list)] = (
        dataclasses.field(default_factory=dict)
    )
    steps: tuple[StatedStep, ...] = ()
    paper: bool = False
    track: Annotated[tuple[Tracker, ...], Field(json_schema_extra={"uniqueItems": True})] = ()
    statements: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)

    @model_validator(mode="before")
    @classmethod
    def _fill_study_values(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        # The record of a run, and what is sent to another process, has them from when it was read.
        statements = values.get("statements") or dict(values)
        # Before anything is constructed: a `kind` that is read as a connector's would be imported.
        stated = partial_adapter(cls).validate_python(with_part_values(dict(values)))
        return {**normalise(stated), "statements": statements}

    def __post_init__(self) -> None:
        # Of the study first, whose errors name no backbone. All else is checked view by view.
        check_names(self)
        for i, step in enumerate(self.steps):
            load_user_step(f"steps.{i}", step)
        _ = self.backbone_studies

    @functools.cached_property
    def backbone_studies(self) -> tuple[StudyView, ...]:
        """The study on each backbone, at its own resolution; one view without `backbones`."""
        return resolve_study(self, self.backbones)

    @property
    def views(self) -> tuple[StudyView, ...]:
        """The study at every resolution of every backbone."""
        return tuple(view for study in self.backbone_studies for view in study.resolutions)

    @property
    def input_paths(self) -> dict[str, str]:
        """Config key -> path of a file that the study reads instead of making it."""
        prefixes = [f"backbones.{name}." for name in self.backbones] or [""]
        return {
            f"{prefix}{key}": path
            for prefix, study in zip(prefixes, self.backbone_studies, strict=True)
            for key, path in study.input_paths.items()
        }

    def describe_budgets(self) -> Iterator[str]:
        """Yields the warnings about budgets that are seldom meant: see the three below."""
        yield from self.describe_undrawn_budgets()
        yield from self.describe_draws()
        yield from self.describe_empty_budgets()

    def describe_undrawn_budgets(self) -> Iterator[str]:
        """Yields a warning for each group of methods scored at budgets that no training draws.

        Such a cell is not wrong, but it says how a method extrapolates, which is seldom meant.
        """
        methods_by_budgets: dict[tuple[int, ...], list[str]] = {}
        for view in self.views:
            for method in view.methods:
                drawn = {view.fine_tuning_of(name, method).budgets for name in view.fine_tunings}
                # None: all that the method serves.
                trained = {budget for budgets in drawn for budget in budgets or view.budgets}
                undrawn = tuple(b for b in view.budgets_of(method) if b not in trained)
                if drawn and undrawn:
                    methods_by_budgets.setdefault(undrawn, []).append(f"{method}{view.view_suffix}")
        for budgets, methods in methods_by_budgets.items():
            yield (
                f"warning: budgets {', '.join(map(str, budgets))} are scored and no training of "
                f"{', '.join(methods)} draws them; name them in train_budgets, too, or leave "
                f"train_budgets out, to draw from all."
            )

    def describe_draws(self) -> Iterator[str]:
        """Yields a line for each view of the study whose elastic methods do not draw alike."""
        for view in self.views:
            if draws := view.draws():
                yield f"warning: {drawn_budgets_text(draws, view.view_suffix[1:])}"

    def describe_empty_budgets(self) -> Iterator[str]:
        """Yields a line if no method of a study without elastic methods serves some budgets."""
        for view in self.views:
            if empty := view.unserved_budgets:
                place = f" at {view.view_suffix[1:]}" if view.view_suffix else ""
                yield (
                    f"warning: budgets {', '.join(map(str, empty))}: no method of the study serves "
                    f"them{place}; their columns stay empty."
                )
