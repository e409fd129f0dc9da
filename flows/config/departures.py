"""What a study's trainings do otherwise than the paper's, in lines for people."""

from collections.abc import Iterator

from flows.config.stage_list import stages_of
from flows.config.study import StudyConfig
from flows.report.text_lists import abbreviate_list
from model.train.config import TrainConfig

_MAX_NAMES = 3
"""Most trainings named in a line; the others are counted."""

_DEPARTURES = {
    "lora": "train adapters of the decoder",
    "freeze_text": "leave the decoder as it is",
}
"""Field of a training recipe -> what a training does where the field is set."""


def describe_departures(config: StudyConfig) -> Iterator[str]:
    """Yields a line per option that trains fewer weights than the paper, with the trainings."""
    trainings: dict[str, TrainConfig] = {}
    for pair in config.pairs:
        trainings |= {f"{stage.key}{pair.on}": stage.recipe for stage in stages_of(pair)}
    for view in config.views:
        tunings = view.fine_tunings.items()
        trainings |= {f"{view.prefix}transfers.{name}{view.on}": train for name, train in tunings}
    for field, does in _DEPARTURES.items():
        names = [name for name, train in trainings.items() if getattr(train, field)]
        if names:
            yield (
                f"note: {abbreviate_list(names, _MAX_NAMES)} {does} ({field}), a departure from "
                f"the paper, which trains all weights."
            )
