"""What a study's trainings do otherwise than the paper's, in lines for people."""

from collections.abc import Iterator

from flows.report.text_lists import abbreviate_list
from flows.study.choices_of_ours import choices_of_ours, stage_recipes, transfer_recipes
from flows.study.study import StudyConfig
from flows.study.view import StudyView
from model.connector.registry import has_mqt

_MAX_NAMES = 3
"""Most trainings named in a line; the others are counted."""

_DEVIATIONS = {
    "lora": "train adapters of the decoder",
    "freeze_text": "leave the decoder as it is",
}
"""Field of a training recipe -> what a training does where the field is set."""


def describe_paper_deviations(config: StudyConfig, *, listed: bool = False) -> Iterator[str]:
    """Yields a line per option that the paper has not, and one that counts our choices.

    Args:
      config: the study.
      listed: whether `choices_of_ours` are shown as well, which then need not be counted.
    """
    # Three sorts: options of trainings, an option of MQT's, and our choices, which are many and are
    # only counted where `--explain` does not list them.
    trainings = {
        key: train for key, _, train in (*stage_recipes(config), *transfer_recipes(config))
    }
    for field, does in _DEVIATIONS.items():
        names = [name for name, train in trainings.items() if getattr(train, field)]
        if names:
            yield (
                f"note: {abbreviate_list(names, _MAX_NAMES)} {does} ({field}), a departure from "
                f"the paper, which trains all weights."
            )
    if names := [
        f"{method}{study.backbone_suffix}"
        for study in config.backbone_studies
        for method in _with_content(study)
    ]:
        yield (
            f"note: {abbreviate_list(names, _MAX_NAMES)} attend to features by content, too "
            f"(mqt_keys), a departure from the paper, whose MQT is the official one: by position "
            f"alone."
        )
    num_ours = 0 if listed else len([*choices_of_ours(config)])
    if num_ours:
        yield (
            f"note: {num_ours} choices of this study are ours, where the paper is silent or says "
            f"otherwise; `parcel run --explain` lists them."
        )


def _with_content(view: StudyView) -> Iterator[str]:
    for method in view.methods:
        connector = view.model_of(method).connector
        if has_mqt(connector.kind) and connector.mqt_keys == "content":
            yield method
