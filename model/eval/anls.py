"""Average normalised Levenshtein similarity: DocVQA, InfoVQA, ST-VQA."""

from model.eval.scores import Fields, some_answers

_THRESHOLD = 0.5


def anls(prediction: str, fields: Fields) -> float:
    """Returns the best similarity with an accepted answer, in [0, 1]; case does not count.

    One minus edits per character of the longer text, where fewer than half need an edit, else 0.
    Space counts.

    Source: Biten et al. 2019 (arXiv:1907.00490), Eq. 1, as in big_vision
    `evaluators/proj/paligemma/transfers/vqa.py` (`anls`, with `to_lower`).

    Args:
      prediction: what the model wrote [text].
      fields: of the record; "answers" holds the accepted answers.

    Raises:
      ValueError: if there is no answer.
    """
    return max(similarity(prediction.lower(), answer.lower()) for answer in some_answers(fields))


def similarity(prediction: str, answer: str) -> float:
    """Returns the similarity of two texts; an empty answer is like an empty prediction only."""
    if not answer:
        return float(prediction == "")
    share = edit_distance(prediction, answer) / max(len(prediction), len(answer))
    return 1 - share if share < _THRESHOLD else 0.0


def edit_distance(left: str, right: str) -> int:
    """Returns how many insertions, deletions and substitutions make one text the other."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, start=1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(right, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]
