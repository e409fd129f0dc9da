"""The score that is left without the questions: the best one answer to all those on a picture."""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from model.eval.metrics.registry import get_metric
from model.eval.metrics.scores import ItemScore
from model.eval.scorer import Scorer, fields_of
from pipelines.records.dataset import Dataset
from pipelines.records.rle import decode_mask

_MAX_CANDIDATES = 16
"""Most answers that are tried for a picture, its most common ones: VQAv2's have fifty each."""


@dataclasses.dataclass(frozen=True)
class _Question:
    """A question, without the pixels.

    Attributes:
      prefix: the question.
      fields: the record's fields that metrics read.
      answers: its right answers, texts or masks [RLE JSON].
    """

    prefix: str
    fields: dict[str, Any]
    answers: tuple[str, ...]


def question_blind_score(eval_dir: str, metric: str) -> float | None:
    """Returns the most that a model can score that sees each picture and not the question, 0-100.

    Such a model gives one answer to all questions on a picture. The best one is taken from the
    right answers themselves, so a score above it has used the questions; one below it need not
    have.

        left? red   right? blue         one of the two is right with "red", or with "blue"
        left? red   right? red          both are, with "red"

    None where no picture has two questions, and for metrics of captions, which read the corpus.

    Args:
      eval_dir: the dataset that is scored on [path].
      metric: a name of the registry.
    """
    scored = get_metric(metric)
    if scored.corpus is not None:
        return None
    by_picture: dict[str, list[_Question]] = collections.defaultdict(list)
    for record in Dataset(eval_dir).records():
        answers = record.masks[:1] if scored.reads_masks else (*record.suffixes, *record.answers)
        question = _Question(record.prefix, fields_of(record), tuple(answers))
        by_picture[record.source_sha256].append(question)
    if all(len({q.prefix for q in questions}) < 2 for questions in by_picture.values()):
        return None
    if scored.reads_masks:
        ious = [
            best
            for questions in by_picture.values()
            for best in _best_scores(questions, _blind_answer_iou)
        ]
        return 100 * sum(ious) / len(ious)

    def score(answer: str, question: _Question) -> float:
        found = scored.score(answer, question.fields)
        return found.score if isinstance(found, ItemScore) else found

    # Scored again with the answers chosen: some scores are no plain mean of their items.
    scorer = Scorer(metric)
    for questions in by_picture.values():
        answer = _best_answer(questions, score)
        for question in questions:
            scorer.add(answer, question.fields)
    return scorer.finish().result.total.score


def _best_answer(questions: Sequence[_Question], score: Callable[[str, _Question], float]) -> str:
    """Returns the answer with the highest sum of scores; of equal ones, the most common."""
    counts = collections.Counter(answer for question in questions for answer in question.answers)
    candidates = [answer for answer, _ in counts.most_common(_MAX_CANDIDATES)] or [""]
    return max(candidates, key=lambda answer: sum(score(answer, q) for q in questions))


def _best_scores(
    questions: Sequence[_Question], score: Callable[[str, _Question], float]
) -> list[float]:
    best = _best_answer(questions, score)
    return [score(best, question) for question in questions]


def _blind_answer_iou(mask: str, question: _Question) -> float:
    if mask == question.answers[0]:
        return 1.0
    guess, true = decode_mask(mask), decode_mask(question.answers[0])
    return float((guess & true).sum() / max(1, (guess | true).sum()))
