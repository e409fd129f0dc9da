"""Scores predictions one by one; scorers of parts of the data merge into that of the whole."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, Self

from model.eval.metrics.registry import CorpusStatistics, Metric, get_metric
from model.eval.metrics.scores import (
    Fields,
    ItemScore,
    Result,
    Sums,
    macro_average,
    summarize,
)
from pipelines.records.schema import Record

NO_VALUE = "(none)"
"""Name of the part of the items that lack the field by which a breakdown is made."""

_COPIES = 1024
"""Copies of every item in `Totals.pseudo_values`; next to them, one copy more or less changes an
item's weight only a little."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictionScores:
    """The scores of some predictions.

    Attributes:
      items: score of each prediction, in the order they were added.
      result: score of all of them.
      pseudo_values: one number per item, on the scale of item scores. Their plain mean is the score
        of all; their spread shows how that score varies over samples of items (see
        `Totals.pseudo_values`). None where the score already is the plain mean of item scores.
    """

    items: tuple[ItemScore, ...]
    result: Result
    pseudo_values: tuple[float, ...] | None = None

    def rows(self) -> Iterator[dict[str, float]]:
        """Yields the fields of each item's score in `items.parquet`."""
        pseudo_values = self.pseudo_values or (None,) * len(self.items)
        for item, value in zip(self.items, pseudo_values, strict=True):
            yield {"score": item.score} | ({} if value is None else {"pseudo_value": value})


class Scorer:
    """Collects predictions of one metric.

    Predictions of a metric that needs the whole corpus (CIDEr, for its document frequencies) are
    scored by `finish`, all others when they are added.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._metric: Metric = get_metric(name)
        self._corpus: CorpusStatistics | None = (
            self._metric.corpus() if self._metric.corpus else None
        )
        self._waiting: list[tuple[str, Fields]] = []
        self._items: list[ItemScore] = []
        self._totals = Totals()

    def add(self, prediction: str, fields: Fields) -> None:
        """Adds one prediction.

        Raises:
          ValueError: if the fields are not what the metric needs.
        """
        if self._corpus is None:
            self._items.append(self._score_prediction(prediction, fields))
            self._totals.add(self._items[-1])
        else:
            self._corpus.add(fields)
            self._waiting.append((prediction, fields))

    @property
    def num(self) -> int:
        """Number of predictions added so far."""
        return len(self._items) + len(self._waiting)

    def merge(self, other: Self) -> None:
        """Adds the predictions of another scorer, after those of this one.

        Raises:
          ValueError: if the other scorer has another metric.
        """
        if other.name != self.name:
            raise ValueError(f"metric must be {self.name!r} to be merged, got {other.name!r}.")
        if self._corpus is not None and other._corpus is not None:
            self._corpus.merge(other._corpus)
        self._waiting += other._waiting
        self._items += other._items
        self._totals.merge(other._totals)

    def finish(self) -> PredictionScores:
        """Returns the scores of all predictions added so far.

        Raises:
          ValueError: if there are none.
        """
        corpus_items = [
            self._score_prediction(p, {**fields, "corpus": self._corpus})
            for p, fields in self._waiting
        ]
        # Into new totals, so that `finish` can be called again after more predictions.
        totals = Totals()
        totals.merge(self._totals)
        for item in corpus_items:
            totals.add(item)
        items = (*self._items, *corpus_items)
        return PredictionScores(
            items=items,
            result=totals.result(self._metric),
            pseudo_values=totals.pseudo_values(self._metric, items),
        )

    def _score_prediction(self, prediction: str, fields: Fields) -> ItemScore:
        score = self._metric.score(prediction, fields)
        item = score if isinstance(score, ItemScore) else ItemScore(score=score)
        # Every item is in a part of each breakdown, so that the parts add up to the whole: those
        # without the field are a part of their own.
        fields_by = {*self._metric.by, self._metric.mean_over} - {""}
        groups = {name: _part_name(fields.get(name)) for name in sorted(fields_by)}
        return dataclasses.replace(item, groups={**groups, **item.groups}) if groups else item


def _part_name(value: object) -> str:
    """Returns the name of the part of the items that have a value; null, NaN, blanks are none."""
    is_none = value is None or value != value
    return (NO_VALUE if is_none else str(value).strip()) or NO_VALUE


class Totals:
    """Sums of the whole, and of each of its parts."""

    def __init__(self) -> None:
        self._overall = Sums()
        self._parts: dict[str, dict[str, Sums]] = {}

    def add(self, item: ItemScore) -> None:
        """Counts an item, for the whole and for the parts it belongs to."""
        self._overall.add(item)
        for field, value in item.groups.items():
            self._parts.setdefault(field, {}).setdefault(value, Sums()).add(item)

    def merge(self, other: Self) -> None:
        """Counts the items of another part of the data."""
        self._overall.merge(other._overall)
        for field, values in other._parts.items():
            for value, sums in values.items():
                self._parts.setdefault(field, {}).setdefault(value, Sums()).merge(sums)

    def result(self, metric: Metric) -> Result:
        """Returns the score, and the breakdowns that have more than one part.

        Raises:
          ValueError: if nothing was counted.
        """
        if not self._overall.num:
            raise ValueError("there must be at least one prediction, got none.")
        results = metric.summarize(self._overall)
        overall = results.pop("score")
        for field, values in self._parts.items():
            if len(values) == 1:
                continue
            # The breakdown of POPE, say, is kind/random, kind/popular, kind/adversarial; with
            # `mean_over` "kind", their plain mean replaces the mean over all predictions.
            parts = {value: metric.summarize(values[value])["score"] for value in sorted(values)}
            results |= {f"{field}/{value}": part for value, part in parts.items()}
            if field == metric.mean_over:
                average = macro_average({value: part.score for value, part in parts.items()})
                overall = dataclasses.replace(overall, score=average)
        return Result(total=overall, parts=results)

    def pseudo_values(self, metric: Metric, items: Sequence[ItemScore]) -> tuple[float, ...] | None:
        """Returns the items' pseudo-values; None where the score is the plain mean of item scores.

        The pseudo-value of each of N items is score + N · (derivative of the score by the item's
        weight). For a plain mean that is the item's own score. For a mean over parts, or for BLEU,
        which is a ratio of sums, it is the item score that would move a plain mean by as much.
        Methods for plain means, such as their intervals, then apply to the pseudo-values.

        Source: the infinitesimal jackknife; Efron, "The Jackknife, the Bootstrap and Other
        Resampling Plans", 1982, chapter 6.

        Args:
          metric: metric of the items.
          items: all items that were added.
        """
        parts = self._parts.get(metric.mean_over, {})
        if is_whole := len(parts) <= 1:
            if metric.summarize is summarize:
                return None
            parts = {"": self._overall}
        copies = {name: part.copies(_COPIES) for name, part in parts.items()}

        def score(sums: Sums) -> float:
            return metric.summarize(sums)["score"].score / 100

        def pull(item: ItemScore) -> float:
            name = "" if is_whole else item.groups[metric.mean_over]
            # A central difference: the score with one copy of the item more, and with one less.
            sums = copies[name]
            sums.weigh(item, 1)
            more = score(sums)
            sums.weigh(item, -2)
            less = score(sums)
            sums.weigh(item, 1)
            return (more - less) / 2 * _COPIES / len(parts)

        # The score itself: a plain mean over its parts, or of all items.
        macro_mean = math.fsum(score(parts[name]) for name in sorted(parts)) / len(parts)
        return tuple(macro_mean + len(items) * pull(item) for item in items)


def fields_of(record: Record) -> dict[str, Any]:
    """Returns the fields metrics may read; of several masks, the one that `prefix` refers to."""
    return {
        **record.meta,
        "id": record.id,
        "lang": record.lang,
        "answers": record.answers,
        "masks": record.masks[:1] if record.prefixes else record.masks,
    }
