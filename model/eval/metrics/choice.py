"""Accuracy of answers that name one of several choices: MMBench's and MMMU's."""

import dataclasses
import hashlib
import re
from collections.abc import Sequence

from model.eval.metrics.scores import Fields, ItemScore, PartScore, Sums, summarize, the_answer

_ENDS = ",.!?;:'"
"""Characters that are taken off both ends of a prediction."""

_WORDS = 5
"""A prediction with more words than this may quote a choice."""

_KEYS = ("could be ", "so ", "is ", "thus ", "therefore ", "final ", "answer ", "result ")
"""Words before the part of a sentence that is its answer."""

_MARKS = str.maketrans(dict.fromkeys(".()[],:;!*#{}", " "))
_ANSWER_IS = re.compile(r"answer\s+is\s+\**([ABCD])", re.IGNORECASE)
_REFUSAL = re.compile(
    r"Sorry, I can't help with images of people yet\.|I can't process this file\.|"
    r"I'm sorry, but without the image provided|Cannot determine the answer"
)

_NUMBERS = (
    r"-?\b\d{1,3}(?:,\d{3})+\b",  # 1,000
    r"-?\d+(?:\.\d+)?[eE][+-]?\d+",  # 1.5e3
    r"-?(?:\d+\.\d+|\.\d+|\d+\b)(?![eE][+-]?\d+)(?![,\d])",  # 1.5
)


def mmbench(prediction: str, fields: Fields) -> ItemScore:
    """Returns 1.0 if the prediction names the right letter, else 0.0.

    MMBench asks a question several times, its choices rotated; the score of a data set is the share
    of questions that are right every time (`summarize_mmbench`). A prediction that names no choice
    is wrong; the authors' server has a language model read these.

    Source: MMBench, arXiv 2307.06281, section 4 (CircularEval); open-compass/VLMEvalKit
    `vlmeval/utils/matching_util.py` (`can_infer`) at e8e78f0: its `exact_matching`.

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "answers" holds the letter, "options" the choices, and
        "question" names the question.

    Raises:
      ValueError: if there is not one answer, or there are no choices or no question.
    """
    answer, letter = the_answer(fields), _matched_letter(prediction, _answer_choices(fields))
    if "question" not in fields:
        raise ValueError("question must name the question of all its rotations, got none.")
    return ItemScore(
        score=float(letter == answer),
        also={"unparsed": float(letter is None)},
        unit=str(fields["question"]),
    )


def summarize_mmbench(sums: Sums) -> dict[str, PartScore]:
    """Returns the share of questions that are right in every rotation, and that of rotations."""
    parts = summarize(sums)
    score = dataclasses.replace(parts["score"], score=parts.pop("consistency").score, sum=None)
    return {**parts, "rotations": parts["score"], "score": score}


def mmmu(prediction: str, fields: Fields) -> ItemScore:
    """Returns 1.0 if the letter, or an open question's answer, is right, else 0.0.

    The parts by "subject" are its subjects'. The authors' code draws a letter where a prediction
    names none; here the question's id draws it, so that a score can be computed again.

    Source: MMMU-Benchmark/MMMU `eval/eval_utils.py` at 44b45b5.

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "options" holds the choices, none for an open question;
        "answers" the letter, or the accepted answers.

    Raises:
      ValueError: if the choices are no texts, or there is not one answer among them.
    """
    if not fields.get("options"):
        return ItemScore(score=float(_is_open_answer(prediction, fields["answers"])))
    options = _answer_choices(fields)
    letter = _last_choice_letter(prediction, options)
    # The first bytes of a digest are as good as a die, and the same on every machine.
    drawn = int.from_bytes(hashlib.sha256(str(fields["id"]).encode()).digest()[:8], "big")
    guess = _choice_letters(options)[drawn % len(options)]
    return ItemScore(
        score=float((letter or guess) == the_answer(fields)),
        also={"unparsed": float(letter is None)},
    )


def _answer_choices(fields: Fields) -> Sequence[str]:
    options = fields.get("options")
    is_list = isinstance(options, list | tuple)
    if not is_list or not options or not all(isinstance(option, str) for option in options):
        raise ValueError(f"options must be a list of at least one text, got {options!r}.")
    return options


def _choice_letters(options: Sequence[str]) -> list[str]:
    return [chr(ord("A") + number) for number in range(len(options))]


def _matched_letter(prediction: str, options: Sequence[str]) -> str | None:
    """Returns the letter that VLMEvalKit matches with a prediction; None if it matches none."""
    words, letters = prediction.translate(_MARKS).split(), _choice_letters(options)
    named = [letter for letter in letters if letter in words]
    if "Failed to obtain answer via API" not in prediction:
        # Z stands for none of the choices.
        if _REFUSAL.search(prediction) or ("Z" in words and not named):
            return None
        # "[B]", "B: fish" and "So it is B" are B; the A of "A bird sits in the tree" is too early.
        if len(named) == 1 and words.index(named[0]) > len(words) - 5:
            return named[0]
        # As there, "the answer is a bird" states A.
        if (stated := _ANSWER_IS.search(prediction)) and stated[1].upper() in letters:
            return stated[1].upper()
    text = prediction.lower()
    quoted = [x for x, option in zip(letters, options, strict=True) if option.lower() in text]
    is_short = len(text) <= 2 * sum(map(len, options))
    return quoted[0] if len(quoted) == 1 and is_short else None


def _last_choice_letter(prediction: str, options: Sequence[str]) -> str | None:
    """Returns the letter of the choice that a prediction names; None if it names none.

    Of several, it is the one that comes last in the text.
    """
    for character in _ENDS:
        prediction = prediction.strip(character)
    text, letters = f" {prediction} ", _choice_letters(options)
    # "(B)" before " B ", and a quoted choice only where no letter stands: "A cat" begins with one.
    for template in ("({})", " {} "):
        if places := {x: at for x in letters if (at := text.rfind(template.format(x))) >= 0}:
            return max(places, key=lambda x: places[x])
    if len(text.split()) <= _WORDS:
        return None
    quoted = [text.lower().rfind(option.lower()) for option in options]
    return letters[quoted.index(max(quoted))] if quoted and max(quoted) >= 0 else None


def _is_open_answer(prediction: str, answers: Sequence[str]) -> bool:
    """Returns whether a prediction holds an accepted text, or equals an accepted number."""
    accepted = {value for answer in answers for value in _normalize_open_answer(answer)}
    texts = {value for value in accepted if isinstance(value, str)}
    return any(
        any(text in value for text in texts) if isinstance(value, str) else value in accepted
        for value in _open_answer_candidates(prediction)
    )


def _open_answer_candidates(prediction: str) -> set[str | float]:
    """Returns the possible answers in a prediction: ends of its sentences, and numbers there.

    "So the speed is 3.5 m/s." means "3.5 m/s", and 3.5.
    """
    sentences = prediction.strip().strip(".").lower().split("\n")
    ends = []
    for number, sentence in enumerate(sentences):
        # The last sentence may be an equation.
        keys = (*_KEYS, "=") if number == len(sentences) - 1 else _KEYS
        shortest = ""
        for end in (sentence.split(key)[-1].strip() for key in keys if key in sentence):
            if not shortest or len(end) < len(shortest):
                shortest = end
        if shortest not in {"", *_ENDS}:
            ends.append(shortest)
    ends = ends or [prediction.strip().strip(".").lower()]
    numbers = [found for end in ends for form in _NUMBERS for found in re.findall(form, end)]
    return {value for text in (*ends, *numbers) for value in _normalize_open_answer(text)}


def _normalize_open_answer(text: str) -> list[str | float]:
    """Returns a number of two decimals, or a text in lower case.

    A single character has a space on one of its sides, so that it is not found in any word.
    """
    text = text.strip()
    try:
        return [round(float(text.replace(",", "")), 2)]
    except ValueError:
        text = text.lower()
        return [f" {text}", f"{text} "] if len(text) == 1 else [text]
