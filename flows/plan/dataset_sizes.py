"""How many records the datasets of a study have: those that are prepared, else as published."""

from collections.abc import Mapping

from flows.config.benchmark import benchmark_of, train_data
from flows.study.view import StudyView
from pipelines.benchmarks.row import Benchmark
from pipelines.prepare.config import PrepareConfig
from pipelines.sources.reading.slicing import parse_slice, slice_bounds
from pipelines.sources.registry import BENCHMARKS


def num_examples(benchmark: Benchmark, split: str) -> int:
    """Returns the examples of a training split by what is published; 0 where that does not say."""
    if split == benchmark.final_split:
        return benchmark.num_train
    if split != benchmark.train_split:
        return 0
    # A run trains on `tune_split` where the scored split is part of `final_split`: on the rest of
    # it, of which the split may name a part.
    #
    #   vqav2    train+val[:-10240]   658,111 - 10,240
    #   docvqa   train[:-5%]          95 % of 44,812 - 5,349
    rest = benchmark.num_train - sum(row.size or 0 for row in benchmark.rows)
    part = parse_slice(split.rpartition("+")[2])
    return len(range(rest)[slice_bounds(part, rest)]) if part.stop.endswith("%") else rest


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

    def num_train(self, view: StudyView, benchmark: str) -> int | None:
        """Returns the records that a benchmark trains on; None where unknown."""
        if (name := f"{benchmark}{view.view_suffix}/train") in self._records:
            return self._records[name]
        published = BENCHMARKS.get(benchmark)
        if published is None:
            return None
        # Part of a split, or a split whose size is not published, is not known.
        count = num_examples(published, train_data(benchmark, view.transfers)[1])
        transfer = view.transfers.get(benchmark)
        return self._published_dataset_size(count, (transfer and transfer.prepare) or view.prepare)

    def num_eval(self, view: StudyView, name: str) -> int | None:
        """Returns the items of a row of the results; None where unknown."""
        if f"{name}/eval" in self._records:
            return self._records[f"{name}/eval"]
        row = view.rows[name]
        transfer = view.transfers[row.benchmark]
        rows = benchmark_of(row.benchmark, transfer).rows
        size = next((r.size for r in rows if r.splits == row.split), None)
        stated = [limit for limit in (size, transfer.eval_limit) if limit is not None]
        return self._published_dataset_size(
            min(stated, default=0), transfer.prepare or view.prepare
        )

    def _published_dataset_size(self, count: int, prepare: PrepareConfig) -> int | None:
        if not count:
            return None
        self.is_any_published = True
        return count if prepare.limit is None else min(count, prepare.limit)
