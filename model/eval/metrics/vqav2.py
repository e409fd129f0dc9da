"""VQAv2's official accuracy: normalised answers, averaged over leaving each annotator out."""

import re

from model.eval.metrics.contractions import CONTRACTIONS
from model.eval.metrics.numerals import NUMERALS
from model.eval.metrics.scores import Fields, some_answers

_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_ARTICLES = frozenset(["a", "an", "the"])
_NUMERALS = {word: digits for word, digits in NUMERALS.items() if int(digits) <= 10}
_DIGITS_WITH_COMMA = re.compile(r"\d,\d")
_PERIOD = re.compile(r"\.(?!\d)")


def vqav2(prediction: str, fields: Fields) -> float:
    """Returns the accuracy of one question, in [0, 1].

    Each annotator is left out in turn; a third counts for each remaining one who agrees, at most 1.
    The mean over all turns is the accuracy: 0.3, 0.6, 0.9, 1.0 if 1, 2, 3, 4 of 10 agree. Texts are
    normalised unless all annotators agree.

    Source: GT-Vision-Lab/VQA `PythonEvaluationTools/vqaEvaluation/vqaEval.py` at a013f00;
    big_vision `evaluators/proj/paligemma/transfers/vqav2.py` at 0127fb6.

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "answers" holds one answer per annotator, 10 in VQAv2 and
        TextVQA; the score is broken down by "answer_type".

    Raises:
      ValueError: if there are fewer than 2 answers: none would be left.
    """
    answers = [_strip_answer_space(answer) for answer in some_answers(fields)]
    if len(answers) < 2:
        raise ValueError(
            f"answers must hold at least 2 texts, one per annotator, got {answers!r}; "
            f"metric vqa takes a single one."
        )
    predicted = _strip_answer_space(prediction)
    if len(set(answers)) > 1:
        predicted, answers = (
            normalize_answer(predicted),
            [normalize_answer(answer) for answer in answers],
        )
    # 3 of 10 agree. Leaving out one of these 3, 2 remain: 2/3. Leaving out one of the other 7, all
    # 3 remain: 1. So (3 * 2/3 + 7 * 1) / 10 = 0.9.
    matches = [answer == predicted for answer in answers]
    agreeing = sum(matches)
    return sum(min(1.0, (agreeing - match) / 3) for match in matches) / len(matches)


def normalize_answer(text: str) -> str:
    """Returns an answer as the official scorer compares it.

    >>> normalize_answer("The two red-white flags.")
    '2 red white flags'

    Each mark of punctuation becomes a space; it is removed instead if it stands next to a space
    somewhere in the text, or if the text has a number like 1,000. Periods are removed unless a
    digit follows. Articles are removed; number words up to ten become digits; "dont" becomes
    "don't".
    """
    has_digit_comma = _DIGITS_WITH_COMMA.search(text) is not None
    normalized = text
    for mark in _PUNCTUATION:
        alone = has_digit_comma or f"{mark} " in text or f" {mark}" in text
        normalized = normalized.replace(mark, "" if alone else " ")
    # The source passes `re.UNICODE`, which is 32, where the number of replacements stands.
    words = _PERIOD.sub("", normalized, count=32).lower().split()
    return " ".join(_normalize_answer_word(word) for word in words if word not in _ARTICLES)


def _strip_answer_space(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ").strip()


def _normalize_answer_word(word: str) -> str:
    return _NUMERALS.get(word) or CONTRACTIONS.get(word, word)
