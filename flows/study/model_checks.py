"""Checks of the models of a study, before anything runs: parameter groups, own connectors."""

from collections.abc import Iterator

from flows.study.stage_list import stages_of
from flows.study.view import StudyView
from infra.errors import ConfigError
from model.config import ModelConfig
from model.connector.registry import KINDS
from model.train.config import TrainConfig


def check_groups(view: StudyView) -> None:
    """Checks that every group of every stage matches a parameter in at least one method's model.

    Raises:
      ConfigError: naming the pattern that matches none, and how paths of parameters begin.
    """
    for field, train, models in _stages(view):
        if not train.groups:
            continue
        from model.train.memory import parameter_paths
        from model.train.optimizer import frozen_adapters, unmatched_groups

        if frozen := frozen_adapters(train, parameter_paths(models[-1], train)):
            raise ConfigError(
                f"{field}.groups: lr must be above 0 where a group reaches the adapters of "
                f"{field}.lora, got 0 for {frozen[0]!r}; put a group for 'lora/.*' before it."
            )
        # Patterns that no model has matched so far; each model can only take some away.
        never = [group.params for group in train.groups]
        for model in reversed(models):  # The last is usually PARCEL's, which has every part.
            if never:
                never = [
                    params
                    for params in unmatched_groups(train, parameter_paths(model, train))
                    if params in never
                ]
        if never:
            paths = parameter_paths(models[-1], train)
            parts = sorted({path.partition("/")[0] for path in paths})
            raise ConfigError(
                f"{field}.groups: no parameter is the first match of {never[0]!r}. Their paths "
                f"begin with {', '.join(parts)}; 'vision/.*' is all of the image tower."
            )


def _stages(base: StudyView) -> Iterator[tuple[str, TrainConfig, list[ModelConfig]]]:
    """Yields each stage's config key, its training recipe and the models that it trains."""
    for stage in stages_of(base):
        yield stage.key, stage.recipe, [stage.view.model_of(method) for method in stage.methods]
    for view in base.resolutions:
        models = [view.model_of(method) for method in view.methods]
        for benchmark, train in view.fine_tunings.items():
            yield f"{view.key_prefix}transfers.{benchmark}.train", train, models


def check_user_connectors(base: StudyView) -> None:
    """Makes and traces each user's connector at the sizes of the study; computes nothing.

    Raises:
      ConfigError: if one breaks a rule that `model.connector.contract` checks without compiling.
    """
    # Variants of one connector are checked once.
    connectors = dict.fromkeys(map(base.connector_of, base.methods))
    if not (user_connectors := [connector for connector in connectors if connector not in KINDS]):
        return
    from model.connector.contract import (
        check_connector_shapes,  # JAX comes with it, and with the class.
    )
    from model.train.resolution import check_resolutions

    for view in base.resolutions:
        for method in user_connectors:
            try:
                check_connector_shapes(view.model_of(method))
                if view is not base:
                    check_resolutions(base.model_of(method), view.model_of(method))
            except ValueError as error:
                raise ConfigError(
                    f"methods: at {view.model.vision.image_px} px {error}; `parcel model "
                    f"check` checks everything that a connector must do."
                ) from None
