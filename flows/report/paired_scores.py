"""Scores of one benchmark, or differences between two methods, by seed and item."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from flows.report.cells import Score
from flows.report.items import Items, is_percentage

SCALE = 100.0
"""Upper end of the scale of scores; the lower one is 0."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PairedScores:
    """One benchmark's scores, or differences between two methods' scores, by seed.

    Attributes:
      values: score or difference of each seed.
      sources: pictures or videos that the items are about, sorted; empty if the items are unknown.
      counts: number of items of each source.
      items: the items' scores or differences by seed, source after source.
      training: name of the training; benchmarks with the same training share their checkpoints.
      low: least value that is possible; -inf for none.
      high: largest value that is possible; inf for none.
      is_binary: whether every answer is right or wrong.
    """

    values: Float[np.ndarray, " S"]
    sources: tuple[str, ...] = ()
    counts: Int[np.ndarray, " C"] = dataclasses.field(default_factory=lambda: np.zeros(0, int))
    items: Float[np.ndarray, "S N"] = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    training: str = ""
    low: float = -math.inf
    high: float = math.inf
    is_binary: bool = False

    @classmethod
    def of(
        cls,
        values: Sequence[float],
        runs: Sequence[Items] = (),
        training: str = "",
        *,
        is_percentage: bool = False,
    ) -> "PairedScores":
        """Returns the scores of the seeds, with their items.

        Args:
          values: score of each seed.
          runs: items of each seed. They are dropped unless there are two sources or more, and all
            seeds have the same sources with the same number of items.
          training: name of the training.
          is_percentage: whether the metric cannot leave 0-100. It is not believed of scores that
            do.
        """
        # Two seeds, and three items about two pictures:
        #
        #   values    [66.7, 100]              one score per seed
        #   sources   ("a.jpg", "b.jpg")
        #   counts    [2, 1]                   items per source
        #   items     [[100, 0, 100],          seed by seed: of a.jpg one is right, b.jpg is right
        #              [100, 100, 100]]        all are right
        scores = np.array(values, dtype=np.float64)
        shapes = [{source: len(of_source) for source, of_source in run.items()} for run in runs]
        paired = cls(values=scores, training=training)
        if shapes and len(shapes[0]) >= 2 and all(shape == shapes[0] for shape in shapes):
            sources = tuple(sorted(shapes[0]))
            if not all(math.isfinite(x) for run in runs for own in run.values() for x in own):
                raise ValueError(f"items of {training or 'a benchmark'} must be finite scores.")
            items = np.array([[x for source in sources for x in run[source]] for run in runs])
            paired = dataclasses.replace(
                paired,
                sources=sources,
                counts=np.array([shapes[0][source] for source in sources]),
                items=items,
                is_binary=bool(np.isin(items, (0.0, SCALE)).all()),
            )
        within = bool(((scores >= 0) & (scores <= SCALE)).all())
        if paired.is_binary or (is_percentage and within):
            paired = dataclasses.replace(paired, low=0.0, high=SCALE)
        return paired

    @classmethod
    def of_scores(cls, scores: Sequence[Score], training: str) -> "PairedScores":
        """Returns one or more seeds' scores of a cell, with their items."""
        return cls.of(
            [score.score for score in scores],
            [score.items for score in scores],
            training,
            is_percentage=is_percentage(scores[0].metric),
        )

    def of_seeds(self, places: Sequence[int]) -> "PairedScores":
        """Returns the scores of the seeds at the given places."""
        items = self.items[list(places)] if self.sources else self.items
        return dataclasses.replace(self, values=self.values[list(places)], items=items)

    def minus(self, other: "PairedScores") -> "PairedScores":
        """Returns the differences to another method with the same seeds.

        The items are dropped if the two methods have different ones.
        """
        # Subtracted seed by seed and item by item. What makes a picture hard, or a seed lucky, for
        # both methods is then gone, which is why the interval of a difference can be narrow.
        low, high = self.low - other.high, self.high - other.low
        values = self.values - other.values
        if self.sources != other.sources or not np.array_equal(self.counts, other.counts):
            return PairedScores(values=values, training=self.training, low=low, high=high)
        return dataclasses.replace(
            self,
            values=values,
            items=self.items - other.items,
            low=low,
            high=high,
            is_binary=self.is_binary and other.is_binary,
        )

    def times(self, factor: float) -> "PairedScores":
        """Returns the scores times a factor above 0."""
        return dataclasses.replace(
            self,
            values=self.values * factor,
            items=self.items * factor,
            low=self.low * factor,
            high=self.high * factor,
            is_binary=False,
        )

    @staticmethod
    def mean_of(rows: Sequence["PairedScores"]) -> "PairedScores":
        """Returns the mean of some scores of the same seeds, such as those of several budgets.

        The items are dropped if they differ.
        """
        if len(rows) == 1:
            return rows[0]
        first = rows[0]
        mean = dataclasses.replace(
            first, values=np.mean([row.values for row in rows], axis=0), is_binary=False
        )
        if any(
            row.sources != first.sources or not np.array_equal(row.counts, first.counts)
            for row in rows
        ):
            none = PairedScores(values=mean.values)
            return dataclasses.replace(
                mean, sources=none.sources, counts=none.counts, items=none.items
            )
        return dataclasses.replace(mean, items=np.mean([row.items for row in rows], axis=0))

    @property
    def num_seeds(self) -> int:
        """Number of seeds."""
        return len(self.values)

    @property
    def starts(self) -> Int[np.ndarray, " C"]:
        """Place of the first item of each source."""
        return np.cumsum(self.counts) - self.counts

    @property
    def num_effective_sources(self) -> float:
        """Number of sources of equal size that would average as well as these."""
        return float(self.counts.sum()) ** 2 / float((self.counts.astype(float) ** 2).sum())
