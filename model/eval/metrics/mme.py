"""MME's score: yes or no, and both questions of an image right."""

import dataclasses

from model.eval.metrics.scores import Fields, ItemScore, PartScore, Sums, summarize, the_answer

_HEAD = 4
"""Characters of a prediction in which "yes" or "no" is looked for."""


def mme(prediction: str, fields: Fields) -> ItemScore:
    """Returns 1.0 if the answers are equal, else 0.0; "invalid" marks neither yes nor no.

    Each image has two questions, which form a unit. The score of a task is the mean of the share of
    right answers (acc) and that of images with both right (acc+), and the score of a data set is
    the mean over its tasks. So MME's published sums are this score times 20 for the ten tasks of
    perception, and times 8 for the four of cognition.

    Source: MME, arXiv 2306.13394, section 2.2; its `eval_tool/calculation.py` at 1c1d69e.

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "answers" holds "yes" or "no", "task" is the task, and "image"
        names the image among all tasks; without it there is no acc+.

    Raises:
      ValueError: if the answer is anything else.
    """
    answer, head = the_answer(fields), prediction.lower()[:_HEAD]
    if answer not in ("yes", "no"):
        raise ValueError(f"answers must hold 'yes' or 'no', got {answer!r}.")
    predicted = "yes" if "yes" in head else "no" if "no" in head else ""
    return ItemScore(
        score=float(predicted == answer),
        also={"invalid": float(not predicted)},
        unit=str(fields.get("image", "")),
    )


def summarize_mme(sums: Sums) -> dict[str, PartScore]:
    """Returns the mean of acc and acc+ under "score", and these two."""
    parts = summarize(sums)
    acc = parts["score"]
    acc_plus = parts.pop("consistency", acc)
    both = dataclasses.replace(acc, score=(acc.score + acc_plus.score) / 2, sum=None)
    return {**parts, "acc": acc, "acc_plus": acc_plus, "score": both}
