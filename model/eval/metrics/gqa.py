"""GQA's accuracy of zero-shot answers, as LLaVA reports it."""

from model.eval.metrics.scores import Fields, the_answer


def gqa_llava(prediction: str, fields: Fields) -> float:
    """Returns 1.0 if the prediction is the answer but for case and final stops, else 0.0.

    Source: haotian-liu/LLaVA `scripts/convert_gqa_for_eval.py` at c121f04.

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "answers" holds the one answer, in lower case.

    Raises:
      ValueError: if there is not one answer.
    """
    return float(prediction.rstrip(".").lower() == the_answer(fields))
