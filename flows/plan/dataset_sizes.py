"""How many records the datasets of a study have: those that are prepared, else as published."""

from collections.abc import Mapping

from flows.config.benchmark import benchmark_of, train_data
from flows.config.study import StudyConfig
from pipelines.prepare.config import PrepareConfig
from pipelines.sources.registry import BENCHMARKS


class DatasetSizes:
    """Numbers of records of a study's datasets.

    Args:
      records: prepared dataset -> number of its records.

    Attributes:
      is_any_published: whether a published size was taken so far.
    """

    def __init__(self, records: Mapping[str, int]) -> None:
        self._records = records
        self.is_any_published = False

    def num_train(self, view: StudyConfig, benchmark: str) -> int | None:
        """Returns the records that a benchmark trains on; None where unknown."""
        if (name := f"{benchmark}{view.at}/train") in self._records:
            return self._records[name]
        published = BENCHMARKS.get(benchmark)
        # A part of a split, or another split than the one whose size is published, is not known.
        if published is None or train_data(benchmark, view.transfers)[1] != published.train_split:
            return None
        transfer = view.transfers.get(benchmark)
        return self._published(published.num_train, (transfer and transfer.prepare) or view.prepare)

    def num_eval(self, view: StudyConfig, name: str) -> int | None:
        """Returns the items of a row of the results; None where unknown."""
        if f"{name}/eval" in self._records:
            return self._records[f"{name}/eval"]
        row = view.rows[name]
        transfer = view.transfers[row.benchmark]
        rows = benchmark_of(row.benchmark, transfer).rows
        size = next((r.size for r in rows if r.splits == row.split), None)
        stated = [limit for limit in (size, transfer.eval_limit) if limit is not None]
        return self._published(min(stated, default=0), transfer.prepare or view.prepare)

    def _published(self, count: int, prepare: PrepareConfig) -> int | None:
        if not count:
            return None
        self.is_any_published = True
        return count if prepare.limit is None else min(count, prepare.limit)
