"""Plain VQA accuracy: equality with one answer, or agreement with several annotators."""

from collections.abc import Mapping
from typing import Any


def exact_match(prediction: str, fields: Mapping[str, Any]) -> float:
    """Returns the score of one question, in [0, 1]; nothing is normalised.

    One accepted answer: equality. Several: a third for each that is equal, at most 1.

    Source: big_vision `evaluators/proj/paligemma/transfers/vqa.py` (`acc`).

    Args:
      prediction: what the model wrote [text].
      fields: of the record; "answers" holds the accepted answers.

    Raises:
      ValueError: if there is no answer.
    """
    answers = fields["answers"]
    if not answers:
        raise ValueError(f"answers is empty for prediction {prediction!r}.")
    matches = sum(prediction == answer for answer in answers)
    return float(matches) if len(answers) == 1 else min(1.0, matches / 3)
