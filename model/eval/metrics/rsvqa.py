"""RSVQA's accuracy: any of the answers, case aside; averaged over question types."""

from model.eval.metrics.scores import Fields, some_answers


def rsvqa(prediction: str, fields: Fields) -> float:
    """Returns 1.0 if the prediction is one of the answers, else 0.0; case does not count.

    The score of a data set is the unweighted mean over the "question_type"s it has (average
    accuracy, AA; not the overall accuracy, OA).

    Source: big_vision `evaluators/proj/paligemma/transfers/rsvqa.py` at 0127fb6 (`acc_avg`).

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "answers" holds the accepted answers.

    Raises:
      ValueError: if there is no answer.
    """
    # "Yes" for "yes" is right. Each type of question then counts alike, however many it has.
    return float(prediction.lower() in [answer.lower() for answer in some_answers(fields)])
