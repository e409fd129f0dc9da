"""CIDEr-D of captions: consensus with the references, weighted by how rare an n-gram is."""

import math
from collections import Counter
from typing import Self

from model.eval.metrics.ngrams import MAX_N, Counts, count_ngrams
from model.eval.metrics.ptb import tokenize_ptb
from model.eval.metrics.scores import Fields, some_answers

_SIGMA = 6.0
_SCALE = 10.0

Vectors = tuple[dict[tuple[str, ...], float], ...]
"""Weight of each n-gram of one caption, by n from 1."""


class Documents:
    """Counts, per language, of the images in whose references each n-gram occurs."""

    def __init__(self) -> None:
        self.num: Counter[str] = Counter()
        self.containing: dict[str, Counter[tuple[str, ...]]] = {}

    def add(self, fields: Fields) -> None:
        """Counts the references of one image.

        Raises:
          ValueError: if there are none.
        """
        lang = _caption_language(fields)
        document_ngrams = {
            ngram
            for reference in some_answers(fields)
            for counts in count_ngrams(tokenize_ptb(reference).split())
            for ngram in counts
        }
        self.num[lang] += 1
        self.containing.setdefault(lang, Counter()).update(document_ngrams)

    def merge(self, other: Self) -> None:
        """Adds the counts of another part of the data."""
        self.num += other.num
        for lang, counts in other.containing.items():
            self.containing.setdefault(lang, Counter()).update(counts)

    def weigh(self, counts: Counts, lang: str) -> Vectors:
        """Returns the weights of a caption's n-grams: their counts times their idf."""
        # Of 100 images, a word in the references of every one weighs log 100 - log 100 = 0, a word
        # of one image alone log 100 - log 1 = 4.6. A word in no reference weighs as much as one in
        # one.
        images, containing = math.log(self.num[lang]), self.containing[lang]
        return tuple(
            {ngram: k * (images - math.log(max(1, containing[ngram]))) for ngram, k in of_n.items()}
            for of_n in counts
        )


def cider(prediction: str, fields: Fields) -> float:
    """Returns the CIDEr-D of one caption, in [0, 10]; papers multiply the mean by 100, as we do.

    With w the weights, D the difference of lengths, m the number of references and N = 4:
    10/(N m) sum_ref exp(-D^2 / (2 6^2)) sum_n (sum_g min(w_g, r_g) r_g) / (|w_n| |r_n|).
    Lengths are counted in bigrams, as the official code does.

    Source: Vedantam et al. 2015 (arXiv:1411.5726), section 5; coco_caption
    `pycocoevalcap/cider/cider_scorer.py` at 3a9afb2.

    Args:
      prediction: the model's answer [text].
      fields: fields of the record; "answers" holds the references, "corpus" the `Documents` of all
        records; "lang" is the language, within which documents are counted.

    Raises:
      ValueError: if there is no reference.
    """
    lang, references = _caption_language(fields), some_answers(fields)
    documents: Documents = fields["corpus"]
    counts = count_ngrams(tokenize_ptb(prediction).split())
    candidate = documents.weigh(counts, lang)
    # A caption equal to its only reference, of four words or more: the similarity is 1 for each of
    # four n, the penalty 1, so 10 * 4 / (4 * 1) = 10. Three bigrams too long: exp(-9/72) = 0.88.
    total = 0.0
    for reference in references:
        reference_ngrams = count_ngrams(tokenize_ptb(reference).split())
        longer = counts[1].total() - reference_ngrams[1].total()
        penalty = math.exp(-(longer**2) / (2 * _SIGMA**2))
        total += penalty * _cider_similarity(candidate, documents.weigh(reference_ngrams, lang))
    return _SCALE * total / (MAX_N * len(references))


def _cider_similarity(candidate: Vectors, reference: Vectors) -> float:
    """Returns the sum over n of the clipped cosine similarity."""
    similarity = 0.0
    for left, right in zip(candidate, reference, strict=True):
        norm = math.hypot(*left.values()) * math.hypot(*right.values())
        if norm:
            # Clipped: repeating a rare word beyond the reference's count adds nothing above the
            # line, but makes the caption's own norm below it larger.
            common = (min(w, right[g]) * right[g] for g, w in left.items() if g in right)
            similarity += sum(common) / norm
    return similarity


def _caption_language(fields: Fields) -> str:
    return str(fields.get("lang") or "en")
