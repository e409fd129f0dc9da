"""Groups of parameters that a study names must be there, before anything runs."""

import functools
from collections.abc import Iterator

from flows.study.config import REFERENCE, StudyConfig
from flows.study.load import ConfigError
from model.config import ModelConfig
from model.train.config import TrainConfig


def check_groups(config: StudyConfig) -> None:
    """Checks that every group of every stage has parameters, in some method's model at least.

    Raises:
      ConfigError: naming the pattern without any, and how paths of parameters begin.
    """
    for field, train, models in _stages(config):
        if not train.groups:
            continue
        from model.train.optimizer import unmatched

        never = [group.params for group in train.groups]
        for model in reversed(models):  # The last is PARCEL's, mostly, which has every part.
            if never:
                never = [params for params in unmatched(train, _paths(model)) if params in never]
        if never:
            parts = sorted({path.partition("/")[0] for path in _paths(models[-1])})
            raise ConfigError(
                f"{field}.groups: no parameter is the first match of {never[0]!r}. Their paths "
                f"begin with {', '.join(parts)}; 'vision/.*' is all of the image tower."
            )


def _stages(config: StudyConfig) -> Iterator[tuple[str, TrainConfig, list[ModelConfig]]]:
    """Yields the key of each stage, how it is trained, and the models that are."""
    if config.stage1 is not None:
        yield "stage1", config.stage1, [config.model_of(REFERENCE)]
    for view in config.resolutions:
        models = [view.model_of(method) for method in view.methods]
        stage2 = "stage2." if view.at else ""
        train = config.intermediary if not view.at or not config.stage2 else config.stage2.train
        if train is not None:
            yield "stage2.train" if view.at else "intermediary", train, models
        for benchmark, train in view.fine_tunings.items():
            yield f"{stage2}transfers.{benchmark}.train", train, models


@functools.lru_cache(64)
def _paths(model: ModelConfig) -> tuple[str, ...]:
    from model import vlm
    from model.checkpoint.digest import flatten

    return tuple(path for path, _ in flatten(vlm.abstract_params(model)))
