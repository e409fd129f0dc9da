"""TallyQA's accuracy: equal counts, in digits or words."""

from model.eval.metrics.numerals import NUMERALS
from model.eval.metrics.scores import Fields, ItemScore, the_answer


def tallyqa(prediction: str, fields: Fields) -> ItemScore:
    """Returns 1.0 if the counts are equal, else 0.0, grouped by simple and complex questions.

    Number words up to twenty count as digits; apart from that, nothing is normalised.

    Source: big_vision `evaluators/proj/paligemma/transfers/tallyqa.py` at 0127fb6.

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "answers" holds the one count; "issimple" is 1 or 0, or -1 or
        absent if unknown.

    Raises:
      ValueError: if there is not one answer.
    """
    # "Two" for "2" is right; "2." or "2 dogs" is not.
    score = float(_count_in_digits(prediction) == _count_in_digits(the_answer(fields)))
    is_simple = fields.get("issimple", -1)
    kind = "simple" if is_simple == 1 else "complex" if is_simple == 0 else ""
    return ItemScore(score=score, groups={"kind": kind} if kind else {})


def _count_in_digits(text: str) -> str:
    return NUMERALS.get(text.lower(), text)
