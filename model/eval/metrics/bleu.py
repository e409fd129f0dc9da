"""BLEU of captions, as coco_caption computes it."""

import math
from collections import Counter
from collections.abc import Mapping

from model.eval.metrics.ngrams import MAX_N, count_ngrams
from model.eval.metrics.ptb import tokenize_ptb
from model.eval.metrics.scores import Fields, ItemScore, PartScore, Sums, some_answers

_SMALL, _TINY = 1e-9, 1e-15
"""Small terms that keep empty captions from dividing by zero."""


def bleu(prediction: str, fields: Fields) -> ItemScore:
    """Returns the BLEU-4 of one caption, and the counts that a data set's BLEU is made of.

    The score of a data set comes from the summed counts, not from captions' scores; BLEU-1 to
    BLEU-4 are among its parts. A caption is compared with the reference closest in length; of
    equally close ones, the shorter.

    Source: Papineni et al. 2002; coco_caption `pycocoevalcap/bleu/bleu_scorer.py` (`closest`).

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "answers" holds the references.

    Raises:
      ValueError: if there is no reference.
    """
    words = tokenize_ptb(prediction).split()
    references = [tokenize_ptb(reference).split() for reference in some_answers(fields)]
    # Counts are clipped at the most that one reference has. "the the the" for "the cat": of its
    # three 1-grams, min(3, 1) = 1 is right.
    max_counts = [Counter() for _ in range(MAX_N)]
    for reference in references:
        for n, counts in enumerate(count_ngrams(reference)):
            max_counts[n] |= counts
    closest = min(
        (len(r) for r in references), key=lambda length: (abs(length - len(words)), length)
    )
    also = {"words": float(len(words)), "reference_words": float(closest)}
    for n, counts in enumerate(count_ngrams(words), start=1):
        also[f"right_{n}"] = float((counts & max_counts[n - 1]).total())
        also[f"ngrams_{n}"] = float(counts.total())
    return ItemScore(score=_bleu_scores(also)[-1], also=also)


def summarize_bleu(sums: Sums) -> dict[str, PartScore]:
    """Returns the BLEU-4 of summed counts under "score", and BLEU-1 to BLEU-4."""
    scores = _bleu_scores({name: sums.total(name) for name in sums.measures()})
    parts = {
        f"bleu_{n}": PartScore(score=100 * score, num=sums.num)
        for n, score in enumerate(scores, start=1)
    }
    return {"score": parts[f"bleu_{MAX_N}"], **parts}


def _bleu_scores(counts: Mapping[str, float]) -> list[float]:
    """Returns BLEU-1 to BLEU-4."""
    # Three words where the reference has six: exp(1 - 6/3) = 0.37 times the precision. Without this
    # factor, one word that surely occurs would be a perfect caption by BLEU-1.
    length = (counts["words"] + _TINY) / (counts["reference_words"] + _SMALL)
    brevity = math.exp(1 - 1 / length) if length < 1 else 1.0
    product, scores = 1.0, []
    for n in range(1, MAX_N + 1):
        product *= (counts[f"right_{n}"] + _TINY) / (counts[f"ngrams_{n}"] + _SMALL)
        scores.append(product ** (1 / n) * brevity)
    return scores
