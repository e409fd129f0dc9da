"""Results of metrics, and exact sums of them that merge over parts of the data."""

import dataclasses
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, Self

Fields = Mapping[str, Any]
"""Fields of one record: "answers", "lang", "masks", and all entries of its meta."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ItemScore:
    """The score of one prediction.

    Attributes:
      score: number that is averaged; in [0, 1], for CIDEr in [0, 10].
      also: other measures of the same prediction, by name.
      groups: parts of the data it counts for, such as {"kind": "human"}.
      unit: name of the question's unit; a unit is consistent if all its questions are right. ""
        is no unit.
    """

    score: float
    also: Mapping[str, float] = dataclasses.field(default_factory=dict)
    groups: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unit: str = ""


class Sums:
    """Sums and counts of items.

    Sums are exact fractions, so that they do not depend on the order of adding and merging.
    """

    def __init__(self) -> None:
        self.num = 0
        self._totals: dict[str, Fraction] = {}
        self._units: dict[str, _Unit] = {}

    def add(self, item: ItemScore) -> None:
        """Counts an item."""
        # One wrong question makes its unit inconsistent, whichever came first.
        if item.unit:
            unit = self._units.get(item.unit, _Unit())
            right = unit.right and item.score == 1
            self._units[item.unit] = _Unit(right=right, size=unit.size + 1, weight=unit.weight)
        self.weigh(item, 1)

    def weigh(self, item: ItemScore, times: int) -> None:
        """Counts an item that was added `times` times more; a negative number takes it back."""
        self.num += times
        # A float is a fraction with a power of two below, so these sums are exact: 0.1 + 0.2 + 0.3
        # is the same in every order, and on however many machines the parts were summed.
        for name, value in {"score": item.score, **item.also}.items():
            self._totals[name] = self._totals.get(name, Fraction(0)) + times * Fraction(value)
        if item.unit:
            unit = self._units[item.unit]
            self._units[item.unit] = dataclasses.replace(unit, weight=unit.weight + times)

    def merge(self, other: Self) -> None:
        """Counts the items of another part of the data."""
        self.num += other.num
        for name, total in other._totals.items():
            self._totals[name] = self._totals.get(name, Fraction(0)) + total
        for name, unit in other._units.items():
            mine = self._units.get(name, _Unit())
            self._units[name] = _Unit(
                right=mine.right and unit.right,
                size=mine.size + unit.size,
                weight=mine.weight + unit.weight,
            )

    def copies(self, times: int) -> "Sums":
        """Returns the sums of `times` copies of every item; units stay as large as they are."""
        copied = Sums()
        copied.num = times * self.num
        copied._totals = {name: times * total for name, total in self._totals.items()}
        copied._units = {
            name: dataclasses.replace(unit, weight=times * unit.weight)
            for name, unit in self._units.items()
        }
        return copied

    def total(self, name: str = "score") -> float:
        """Returns the sum of one measure, correctly rounded."""
        return float(self._totals.get(name, Fraction(0)))

    def measures(self) -> list[str]:
        """Returns the names of the measures other than the score."""
        return [name for name in self._totals if name != "score"]

    def consistency(self) -> "PartScore | None":
        """Returns the share of units with every question right; None if there are no units."""
        if not self._units:
            return None
        # A unit counts as often as its questions do on average: once, but in `copies`.
        weights = [Fraction(unit.weight, unit.size) for unit in self._units.values()]
        right = sum(w for w, unit in zip(weights, self._units.values(), strict=True) if unit.right)
        score = 100 * float(right) / float(sum(weights))
        return PartScore(score=score, num=len(self._units), sum=float(right))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Unit:
    """A unit: whether all its questions are right, their number, and how often these count."""

    right: bool = True
    size: int = 0
    weight: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartScore:
    """A score (0-100), its number of predictions, and their scores' sum if it is their mean."""

    score: float
    num: int
    sum: float | None = None

    def as_json(self) -> dict[str, float]:
        """Returns a JSON object without the unknown fields."""
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The score of a data set (0-100).

    Attributes:
      total: the score, the number of predictions and the sum of their scores.
      parts: breakdowns ("kind/human") and further measures ("consistency"), by name.
    """

    total: PartScore
    parts: Mapping[str, PartScore]

    def as_json(self, metric: str) -> dict[str, Any]:
        """Returns the contents of `score.json`; "parts" only where there are any."""
        parts = {name: part.as_json() for name, part in self.parts.items()}
        return {"metric": metric, **self.total.as_json(), **({"parts": parts} if parts else {})}


def summarize(sums: Sums) -> dict[str, PartScore]:
    """Returns the mean score under "score", and the means of all other measures."""
    means = {name: mean(sums.total(name), sums.num) for name in ["score", *sorted(sums.measures())]}
    consistency = sums.consistency()
    return means | ({"consistency": consistency} if consistency else {})


def mean(total: float, num: int) -> PartScore:
    """Returns the mean of `num` scores that add up to `total`."""
    return PartScore(score=100 * total / num, num=num, sum=total)


def macro_average(scores: Mapping[str, float]) -> float:
    """Returns the unweighted mean of the parts' scores, all of them.

    Benchmarks that are reported without English, such as xGQA, leave it out of their split.
    """
    return sum(scores[name] for name in sorted(scores)) / len(scores)


def the_answer(fields: Fields) -> str:
    """Returns the one accepted answer.

    Raises:
      ValueError: if there are none or several.
    """
    answers = some_answers(fields)
    if len(answers) != 1:
        raise ValueError(f"answers must hold one text, got {len(answers)}: {answers!r}.")
    return answers[0]


def some_answers(fields: Fields) -> list[str]:
    """Returns the accepted answers.

    Raises:
      ValueError: if there are none.
    """
    answers: Iterable[str] = fields.get("answers", ())
    if not (answer_list := list(answers)):
        raise ValueError("answers must hold at least one text, got none.")
    return answer_list
