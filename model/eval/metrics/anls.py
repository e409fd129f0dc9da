"""Average normalised Levenshtein similarity: DocVQA, InfoVQA, ST-VQA."""

from model.eval.metrics.scores import Fields, some_answers

_THRESHOLD = 0.5


def anls(prediction: str, fields: Fields) -> float:
    """Returns the best similarity with an accepted answer, in [0, 1], as the benchmarks score it.

    Similarity is one minus the edits per character of the longer text; below a half it counts as 0.
    Case and extra spaces are ignored, except in the length.

    Source: Biten et al. 2019 (arXiv:1907.00490), Eq. 1, as in the challenges' own
    `infographicsvqa_eval.py`, which Qwen-VL and lmms-eval run.

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "answers" holds the accepted answers.

    Raises:
      ValueError: if there is no answer.
    """
    # "parris" for "paris": 1 edit, 6 characters: 1 - 1/6 = 0.83. "Paris" for "Paris, France": 8
    # edits, 13 characters: 1 - 8/13 = 0.38, below a half, so 0.
    best = 1 - min(_edited_share(prediction, answer) for answer in some_answers(fields))
    return best if best >= _THRESHOLD else 0.0


def anls_big_vision(prediction: str, fields: Fields) -> float:
    """Returns ANLS as PaliGemma reports it: a similarity of a half is 0 too, and spaces count.

    One wrong character of two is 0.5 by `anls` and 0 here: published PaliGemma numbers compare with
    this one.

    Source: big_vision `evaluators/proj/paligemma/transfers/vqa.py` at 0127fb6 (`anls`, `to_lower`).

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "answers" holds the accepted answers.

    Raises:
      ValueError: if there is no answer.
    """
    return max(
        _strict_anls_similarity(prediction.lower(), answer.lower())
        for answer in some_answers(fields)
    )


def edit_distance(left: str, right: str) -> int:
    """Returns how many insertions, deletions and substitutions make one text the other."""
    # Dynamic programming with one row of the table in memory: `row[j]` is the distance from the
    # part of `left` read so far to `right[:j]`.
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, start=1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(right, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]


def _edited_share(prediction: str, answer: str) -> float:
    # Case and spaces are put aside for the edits only; `length` is that of the raw texts, because
    # the official script counts it there.
    predicted, reference = (" ".join(text.lower().split()) for text in (prediction, answer))
    length = max(len(prediction.upper()), len(answer.upper()))
    return edit_distance(predicted, reference) / length if length else 0.0


def _strict_anls_similarity(prediction: str, answer: str) -> float:
    if not answer:
        return float(prediction == "")
    share = edit_distance(prediction, answer) / max(len(prediction), len(answer))
    return 1 - share if share < _THRESHOLD else 0.0
