"""POPE's accuracy: yes or no, is the object there."""

from model.eval.metrics.scores import Fields, ItemScore, the_answer


def pope(prediction: str, fields: Fields) -> ItemScore:
    """Returns 1.0 if the answers are equal, else 0.0; "invalid" marks neither yes nor no.

    The prediction's case is ignored. The score of a data set is the mean over its "kind"s:
    random, popular and adversarial, which are equally large.

    Source: big_vision `evaluators/proj/paligemma/transfers/pope.py`; PaliGemma, appendix J.

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "answers" holds "yes" or "no".

    Raises:
      ValueError: if it holds anything else.
    """
    # "Yes" for "yes" is right; "yes, it is" is neither answer, so it is wrong and invalid.
    answer, predicted = the_answer(fields), prediction.lower()
    if answer not in ("yes", "no"):
        raise ValueError(f"answers must hold 'yes' or 'no', got {answer!r}.")
    return ItemScore(
        score=float(predicted == answer), also={"invalid": float(predicted not in ("yes", "no"))}
    )
