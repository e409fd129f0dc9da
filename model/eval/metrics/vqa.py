"""Plain VQA accuracy: equality with one answer, or agreement with several annotators."""

from model.eval.metrics.scores import Fields, some_answers


def vqa(prediction: str, fields: Fields) -> float:
    """Returns the score of one question, in [0, 1]; nothing is normalised.

    With one accepted answer, the score is equality. With several, it is a third for each equal one,
    at most 1.

    Source: big_vision `evaluators/proj/paligemma/transfers/vqa.py` at 0127fb6 (`acc`).

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "answers" holds the accepted answers.

    Raises:
      ValueError: if there is no answer.
    """
    answers = some_answers(fields)
    # 2 of 10 annotators say the same: 2/3. 3 or more: 1.
    matches = sum(prediction == answer for answer in answers)
    return float(matches) if len(answers) == 1 else min(1.0, matches / 3)


def vqa_lower(prediction: str, fields: Fields) -> float:
    """Returns `vqa` with case ignored; big_vision's `to_lower` at 0127fb6."""
    return vqa(prediction.lower(), {"answers": [a.lower() for a in some_answers(fields)]})
