"""NLVR2's and MaRVL's accuracy, and NLVR2's consistency."""

from model.eval.metrics.scores import Fields, ItemScore, the_answer


def nlvr(prediction: str, fields: Fields) -> ItemScore:
    """Returns 1.0 if the prediction is the answer, "True" or "False", else 0.0.

    The questions of one sentence form a unit. Consistency: the share of units with every question
    right. Units are read from NLVR2's identifiers, "split-set-pair-sentence"; records with other
    identifiers have no unit.

    Source: big_vision `evaluators/proj/paligemma/transfers/vqa.py` at 0127fb6; lil-lab/nlvr
    `nlvr2/eval/metrics.py` at 1892484 (consistency).

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "answers" holds "True" or "False"; "identifier", or else "id",
        names the unit.

    Raises:
      ValueError: if it holds anything else.
    """
    answer = the_answer(fields)
    if answer not in ("True", "False"):
        raise ValueError(f"answers must hold 'True' or 'False', got {answer!r}.")
    # "dev-124-0-1" is sentence 1 about pair 0 of set 124. All pairs of one sentence are the unit
    # "dev-124-1".
    names = str(fields.get("identifier") or fields.get("id", "")).split("-")
    unit = f"{names[0]}-{names[1]}-{names[3]}" if len(names) == 4 else ""
    return ItemScore(score=float(prediction == answer), unit=unit)
