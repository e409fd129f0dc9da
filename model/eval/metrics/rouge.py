"""ROUGE-L of captions: the longest common subsequence with a reference."""

from model.eval.metrics.ptb import tokenize_ptb
from model.eval.metrics.scores import Fields, some_answers

_BETA = 1.2


def rouge_l(prediction: str, fields: Fields) -> float:
    """Returns the ROUGE-L of one caption, in [0, 1].

    It is the F-measure of the best precision and the best recall, which may come from different
    references; recall counts 1.2 times.

    Source: Lin and Och 2004; coco_caption `pycocoevalcap/rouge/rouge.py`.

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "answers" holds the references.

    Raises:
      ValueError: if there is no reference.
    """
    # `split(" ")` as in the official code: an empty caption is one empty word.
    words = tokenize_ptb(prediction).split(" ")
    references = [tokenize_ptb(reference).split(" ") for reference in some_answers(fields)]
    # "a red dog" for "a dog": 2 words in common, precision 2/3, recall 2/2.
    common = [longest_common_subsequence(words, reference) for reference in references]
    precision = max(common) / len(words)
    recall = max(c / len(r) for c, r in zip(common, references, strict=True))
    if not precision or not recall:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)


def longest_common_subsequence(left: list[str], right: list[str]) -> int:
    """Returns how many words two captions have in common, in the same order."""
    # Dynamic programming with one row of the table in memory: `row[j]` is the result for the part
    # of `left` read so far and `right[:j]`.
    row = [0] * (len(right) + 1)
    for word in left:
        diagonal = 0
        for j, other in enumerate(right, start=1):
            diagonal, row[j] = row[j], diagonal + 1 if word == other else max(row[j], row[j - 1])
    return row[-1]
