"""What a study's trainings do otherwise than the paper's, in lines for people."""

from collections.abc import Iterator

from flows.config.stage_list import stages_of
from flows.config.study import StudyConfig
from model.train.config import TrainConfig

_DEPARTURES = {
    "lora": "train adapters of the decoder",
    "freeze_text": "leave the decoder as it is",
}
"""Field of a training recipe -> what a training does where the field is set."""


def describe_departures(config: StudyConfig) -> Iterator[str]:
    """Yields a line per option that trains fewer weights than the paper, with the trainings."""
    trainings: dict[str, TrainConfig] = {stage.key: stage.recipe for stage in stages_of(config)}
    for view in config.resolutions:
        tunings = view.fine_tunings.items()
        trainings |= {f"{view.prefix}transfers.{name}": train for name, train in tunings}
    for field, does in _DEPARTURES.items():
        names = [name for name, train in trainings.items() if getattr(train, field)]
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            yield (
                f"note: {', '.join(names[:3])}{more} {does} ({field}), a departure from the paper, "
                f"which trains all weights."
            )
