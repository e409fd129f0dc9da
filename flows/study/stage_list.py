"""The pretraining stages of a study, in the order in which a method goes through them."""

import dataclasses
from collections.abc import Iterator

from flows.config.stages import StageConfig
from flows.study.settings import REFERENCE, Method
from flows.study.view import StudyView
from model.train.config import TrainConfig

STUDY_START = "start"
"""What stands before the first stage: the study's `start`, or random parameters."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingStage:
    """One pretraining stage.

    Attributes:
      name: its name, from which its seed is derived.
      key: config key of its recipe.
      after: name of the stage that it continues from, or `STUDY_START`; None: the last that the
        method was trained in.
      view: the study at the stage's resolution.
      methods: the methods that are trained in it.
      recipe: its training recipe, as the config states it.
      is_shared: whether one training, of the reference, serves all methods.
    """

    name: str
    key: str
    after: str | None
    view: StudyView
    methods: tuple[Method, ...]
    recipe: TrainConfig
    is_shared: bool = False

    def train_config_of(self, method: Method) -> TrainConfig:
        """Returns the recipe by which a method is trained in it."""
        if self.is_shared:
            return self.view.in_parts(self.recipe)
        return self.view.train_config_for(self.recipe, method)


def stages_of(base: StudyView) -> tuple[PretrainingStage, ...]:
    """Returns the stages of a study; each stands after the one that it continues from."""
    # The paper's three, and the study's own, resolution by resolution:
    #
    #   start ─▶ stage1 ─▶ intermediary ─▶ own ─▶ …  │  stage2 ─▶ own ─▶ …  │  own ─▶ …
    #                                       224 px   │  448 px              │  896 px
    #
    # Transfers at a resolution begin from the last stage there, and so does Stage 2.
    stages: list[PretrainingStage] = []
    if base.stage1 is not None:
        stages.append(
            PretrainingStage(
                name="stage1",
                key="stage1",
                after=STUDY_START,
                view=base,
                methods=(REFERENCE,),
                recipe=base.stage1,
                is_shared=True,
            )
        )
    if base.intermediary is not None:
        stages.append(
            PretrainingStage(
                name="intermediary",
                key="intermediary",
                after=None,
                view=base,
                methods=base.methods,
                recipe=base.intermediary,
            )
        )
    stages += _stages_at(base, base, {STUDY_START, *(stage.name for stage in stages)})
    # Stage 2, if there is one, takes the first of the higher resolutions.
    higher = iter(base.higher)
    if base.stage2 is not None:
        view = next(higher)
        stage2 = PretrainingStage(
            name="stage2",
            key="stage2.train",
            after=None,
            view=view,
            methods=view.methods,
            recipe=base.stage2.train,
        )
        stages += [stage2, *_stages_at(base, view, {stage2.name})]
    for i, stage in enumerate(base.stages):
        if stage.resolution is not None:
            view = next(higher)
            stages.append(_user_stage(i, stage, view))
            stages += _stages_at(base, view, {stage.name})
    return tuple(stages)


def _stages_at(base: StudyView, view: StudyView, names: set[str]) -> Iterator[PretrainingStage]:
    """Yields the study's own stages after some others, and after these in turn."""
    for i, stage in enumerate(base.stages):
        if stage.after in names and stage.resolution is None:
            names.add(stage.name)
            yield _user_stage(i, stage, view)


def _user_stage(i: int, stage: StageConfig, view: StudyView) -> PretrainingStage:
    return PretrainingStage(
        name=stage.name,
        key=f"stages.{i}.train",
        after=stage.after,
        view=view,
        methods=stage.methods or view.methods,
        recipe=stage.train,
    )
