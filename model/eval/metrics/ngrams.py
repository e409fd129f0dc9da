"""Counts of n-grams, which CIDEr and BLEU are made of."""

from collections import Counter

MAX_N = 4

Counts = tuple[Counter[tuple[str, ...]], ...]
"""Counts of the 1-grams, 2-grams, ... `MAX_N`-grams of one caption."""


def count_ngrams(words: list[str]) -> Counts:
    """Returns how often each n-gram occurs, by n from 1."""
    return tuple(
        Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
        for n in range(1, MAX_N + 1)
    )
