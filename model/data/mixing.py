"""The assignment of examples to parts, by exact weights and without running counts."""

import bisect
import functools
import math
from collections.abc import Hashable, Mapping
from fractions import Fraction
from typing import Generic, TypeVar

from pipelines.records.shapes import part_without_images

Name = TypeVar("Name", bound=Hashable)


def exact_fraction(weight: Fraction | float) -> Fraction:
    """Returns a weight as the exact decimal that is written: 0.1 is a tenth."""
    return Fraction(str(weight))


def weights_of(mixture: Mapping[str, float], sizes: Mapping[str, int]) -> dict[str, Fraction]:
    """Returns the weight of each part that is drawn from.

    Args:
      mixture: name -> weight. Parts of that name that differ in number of images share the weight
        by their records. An empty mixture weights all parts by their records.
      sizes: part -> its number of records.

    Raises:
      ValueError: if the mixture names a part that does not exist.
    """
    if not mixture:
        return {name: Fraction(size) for name, size in sizes.items()}
    weights = {}
    for name, weight in mixture.items():
        parts = {part: size for part, size in sizes.items() if part_without_images(part) == name}
        if not parts:
            accepted = ", ".join(sorted({part_without_images(part) for part in sizes}))
            raise ValueError(f"mixture: no part {name!r} in the data. Accepted: {accepted}.")
        for part, size in parts.items():
            weights[part] = exact_fraction(weight) * Fraction(size, sum(parts.values()))
    return weights


class Mixture(Generic[Name]):
    """Endless streams merged by weight; any example is found without computing those before it.

    Among the first k examples, a stream has its share of k, with an error below the number of
    streams.

        weights {a: 2, b: 1}   a0 a1 b0 a2 a3 b1 …

    Source: grain `MapDataset.mix`, which rounds the weights to whole hundredths of the smallest
    one; here they are fractions.

    Args:
      weights: stream -> weight, above 0; only their ratios count.
    """

    def __init__(self, weights: Mapping[Name, Fraction | float]) -> None:
        fractions = [exact_fraction(weight) for weight in weights.values()]
        common = math.lcm(*(fraction.denominator for fraction in fractions))
        self._names = list(weights)
        self._weights = [int(fraction * common) for fraction in fractions]
        self._total = sum(self._weights)

    def __getitem__(self, number: int) -> tuple[Name, int]:
        """Returns the stream of an example, and the example's number in it."""
        # `before` and `after` count the examples of this stream and all later ones, among the first
        # `number` and among one more. The example belongs to the stream whose own count grows.
        before, after, remaining_weight = number, number + 1, self._total
        for name, weight in zip(self._names, self._weights, strict=True):
            others_before = before * (remaining_weight - weight) // remaining_weight
            others_after = after * (remaining_weight - weight) // remaining_weight
            if before - others_before != after - others_after:
                return name, before - others_before
            before, after, remaining_weight = others_before, others_after, remaining_weight - weight
        raise AssertionError

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def number(self, name: Name, position: int) -> int:
        """Returns the number of a stream's example among all; the inverse of `self[number]`.

        Args:
          name: name of a stream of the mixture.
          position: the example's number in its stream.
        """
        weight = self._weights[self._names.index(name)]
        # An upper bound: of that many examples, the stream has more than `position` even after
        # rounding. `count` never falls, so bisection finds the number below it.
        enough = (position + 1 + len(self._names)) * self._total // weight + 1
        counts = functools.partial(self.count, name)
        return bisect.bisect_right(range(enough + 1), position, key=counts) - 1

    def count(self, name: Name, number: int) -> int:
        """Returns how many of the first `number` examples belong to a stream."""
        # Streams are split off one by one, each from the examples that those before it left over:
        #
        #     {a: 2, b: 1, c: 1}, first 10 examples   a 5, of 5 left: b 3, of 2 left: c 2
        #
        # Integers alone, so every host and every resumed run counts the same.
        remaining_weight = self._total
        for stream, weight in zip(self._names, self._weights, strict=True):
            preceding = number * (remaining_weight - weight) // remaining_weight
            if stream == name:
                return number - preceding
            number, remaining_weight = preceding, remaining_weight - weight
        raise AssertionError
