"""ChartQA's relaxed accuracy: numbers may be off by five percent."""

from model.eval.metrics.scores import Fields, the_answer

_TOLERANCE = 0.05


def relaxed_accuracy(prediction: str, fields: Fields) -> float:
    """Returns 1.0 if the prediction is right, else 0.0; case does not count.

    Two numbers agree within 5 % of the (non-zero) answer; "12%" is 0.12. Anything else must be
    equal.

    Source: big_vision `evaluators/proj/paligemma/transfers/chartqa.py` at 0127fb6.

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "answers" holds the one accepted answer.

    Raises:
      ValueError: if there is not one answer.
    """
    predicted, target = prediction.lower(), the_answer(fields).lower()
    number, target_number = _parse_chart_number(predicted), _parse_chart_number(target)
    # 104 for 100 is right, 106 is wrong; "12%" for "0.12" is right. Five percent of 0 would be
    # nothing, so an answer of 0 is compared as text.
    if number is not None and target_number:
        return float(abs(number - target_number) / abs(target_number) <= _TOLERANCE)
    return float(predicted == target)


def _parse_chart_number(text: str) -> float | None:
    try:
        return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None
