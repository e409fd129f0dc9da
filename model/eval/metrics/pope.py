"""POPE's accuracy: yes or no, is the object there."""

from model.eval.metrics.scores import Fields, ItemScore, the_answer


def pope(prediction: str, fields: Fields) -> ItemScore:
    """Returns 1.0 if the answers are equal, else 0.0; "yes_ratio" is the share read as yes.

    The score of a data set is the mean over its "kind"s: random, popular and adversarial, which are
    equally large.

    Source: POPE, arXiv 2305.10355; AoiDragon/POPE `evaluate.py` at 08d957b, as LLaVA runs it.

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "answers" holds "yes" or "no".

    Raises:
      ValueError: if it holds anything else.
    """
    # All but these words of the first sentence is yes: "", "Not sure" and "No!", too.
    words = prediction.partition(".")[0].replace(",", "").split(" ")
    predicted = "no" if {"No", "not", "no"} & {*words} else "yes"
    score = pope_big_vision(predicted, fields).score
    return ItemScore(score=score, also={"yes_ratio": float(predicted == "yes")})


def pope_big_vision(prediction: str, fields: Fields) -> ItemScore:
    """Returns 1.0 if the answers are equal but for case, else 0.0; "invalid" marks neither.

    Source: big_vision `evaluators/proj/paligemma/transfers/pope.py` at 0127fb6 (PaliGemma's).
    """
    # "Yes" for "yes" is right; "yes, it is" is neither answer, so it is wrong and invalid.
    answer, predicted = the_answer(fields), prediction.lower()
    if answer not in ("yes", "no"):
        raise ValueError(f"answers must hold 'yes' or 'no', got {answer!r}.")
    return ItemScore(
        score=float(predicted == answer), also={"invalid": float(predicted not in ("yes", "no"))}
    )
