"""One model's items on one task, as another evaluation system logged them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from flows.report.cells import NO_BUDGET


class ItemLogError(ValueError):
    """A log cannot be read or compared; the message is one line: file, line, field, cure."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoggedItem:
    """One question with its answer.

    Attributes:
      id: the question's id in its task.
      source: picture or video that it is about, which items may share: a digest, or a name within
        its task; "" if the log has none.
      question: the question's data, or a digest of it; "" if unknown.
      prompt: text that the model was given; "" if unknown.
      target: accepted answer, as logged.
      answer: the model's answer, as logged; None if the log has no single text.
      score: score of the answer, 0-1; above where the metric is unbounded, and a pseudo-value where
        it is no mean of items (`PredictionScores`).
      text: the question alone, without what a prompt adds to it; "" if unknown.
      prompt_digest: digest of the prompt; "" if the log has none.
      target_digest: digest of the target; "" if the log has none.
      alike: what items of one question have in common, also under several ids; "" if unknown.
    """

    id: str
    source: str
    question: str
    prompt: str
    target: str
    answer: str | None
    score: float
    text: str = ""
    prompt_digest: str = ""
    target_digest: str = ""
    alike: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ItemLog:
    """All items of one model on one task.

    Attributes:
      file: the log [path].
      model: name of the model; a method, in a log of `parcel results`.
      metric: name of the metric that `score` of the items is in.
      split: the task's split; "" if unknown.
      items: the items, sorted by id; ids are distinct.
      budget: soft tokens per image; `NO_BUDGET` if the log has no such number.
      seed: seed of the model's training, which tells trainings of one method apart.
      pretraining: number of the pretraining that its training started from.
      checkpoint: name of the checkpoint that answered; "" if unknown. Tasks that share one have the
        luck of its training in common.
      settings: how answers were made and scored, by name as in `settings.EXPECTED`, such as
        {"few-shot": 0, "generation.temperature": 0}; what the log does not state is left out.
    """

    file: str
    model: str
    task: str
    metric: str
    split: str
    items: tuple[LoggedItem, ...]
    budget: int = NO_BUDGET
    seed: int = 0
    pretraining: int = 0
    checkpoint: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
