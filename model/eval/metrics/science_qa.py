"""ScienceQA's accuracy: the letter in "The answer is B."."""

import re

from model.eval.metrics.scores import Fields, ItemScore, the_answer

_ANSWER = re.compile(r"the answer is ([a-z])\.")


def science_qa(prediction: str, fields: Fields) -> ItemScore:
    """Returns 1.0 if the letters are equal, else 0.0; "unparsed" marks a text without a letter.

    Source: big_vision `evaluators/proj/paligemma/transfers/science_qa.py` at 0127fb6.

    Args:
      prediction: the model's answer, of which only the beginning is read [text].
      fields: fields of the record; "answers" holds the one answer, in the same words.

    Raises:
      ValueError: if there is not one answer, or it has no letter.
    """
    answer = the_answer(fields)
    # "The answer is B. Because …" has the letter b; "B" alone has none and is wrong.
    letter, answer_letter = _parse_answer_letter(prediction), _parse_answer_letter(answer)
    if answer_letter is None:
        raise ValueError(f"answers must hold 'The answer is X.' for a letter X, got {answer!r}.")
    return ItemScore(score=float(letter == answer_letter), also={"unparsed": float(letter is None)})


def _parse_answer_letter(text: str) -> str | None:
    match = _ANSWER.match(text.lower())
    return match[1] if match else None
