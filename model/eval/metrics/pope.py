"""POPE's accuracy: yes or no, is the object there."""

from model.eval.metrics.scores import Fields, ItemScore, the_answer

_NEGATIONS = {"No", "no", "not"}


def pope(prediction: str, fields: Fields) -> ItemScore:
    """Returns 1.0 if the answers are equal, else 0.0; "yes_ratio" is the share that says yes.

    A prediction says no if "No", "no" or "not" is a word of what stands before its first stop, else
    it says yes, whatever it is. The score of a data set is the mean over its "kind"s: random,
    popular and adversarial, which are equally large.

    Source: POPE, arXiv 2305.10355; AoiDragon/POPE `evaluate.py` at 08d957b, which LLaVA's
    `llava/eval/eval_pope.py` repeats.

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "answers" holds "yes" or "no".

    Raises:
      ValueError: if it holds anything else.
    """
    # "No, it is a cat." is no. "Not sure" and "No!" are yes: case counts, and so does a mark that
    # is no comma.
    words = prediction.partition(".")[0].replace(",", "").split(" ")
    predicted = "yes" if _NEGATIONS.isdisjoint(words) else "no"
    score = float(predicted == _yes_or_no(fields))
    return ItemScore(score=score, also={"yes_ratio": float(predicted == "yes")})


def pope_big_vision(prediction: str, fields: Fields) -> ItemScore:
    """Returns 1.0 if the answers are equal, else 0.0; "invalid" marks neither yes nor no.

    The prediction's case is ignored. The score of a data set is that of `pope`.

    Source: big_vision `evaluators/proj/paligemma/transfers/pope.py` at 0127fb6; PaliGemma,
    appendix J.

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "answers" holds "yes" or "no".

    Raises:
      ValueError: if it holds anything else.
    """
    # "Yes" for "yes" is right; "yes, it is" is neither answer, so it is wrong and invalid.
    answer, predicted = _yes_or_no(fields), prediction.lower()
    return ItemScore(
        score=float(predicted == answer), also={"invalid": float(predicted not in ("yes", "no"))}
    )


def _yes_or_no(fields: Fields) -> str:
    answer = the_answer(fields)
    if answer not in ("yes", "no"):
        raise ValueError(f"answers must hold 'yes' or 'no', got {answer!r}.")
    return answer
