"""The table of benchmarks: prompts, splits, frames, metrics, recipes, in a file per family.

Readers in `pipelines.sources` import their family's file, never this one, so that the code of a
dataset of charts does not include the benchmarks of videos.
"""

from pipelines.benchmarks import (
    captions,
    documents,
    pairs,
    remote_sensing,
    segmentation,
    video,
    vqa,
)
from pipelines.benchmarks.row import Benchmark, Row

__all__ = ["BENCHMARKS", "Benchmark", "get", "main_suite", "serving"]

_FAMILIES = (captions, documents, pairs, remote_sensing, segmentation, video, vqa)

BENCHMARKS: dict[str, Benchmark] = dict(
    sorted(entry for family in _FAMILIES for entry in family.BENCHMARKS.items())
)


def get(name: str) -> Benchmark:
    """Returns a benchmark.

    Raises:
      ValueError: if there is no benchmark of that name, with the list of all names.
    """
    if name not in BENCHMARKS:
        raise ValueError(f"benchmark must be one of {', '.join(BENCHMARKS)}, got {name!r}.")
    return BENCHMARKS[name]


def main_suite() -> tuple[tuple[Benchmark, Row], ...]:
    """Returns the 27 rows whose mean retention the paper reports, each with its benchmark."""
    return tuple((b, row) for b in BENCHMARKS.values() for row in b.rows if row.suite == "main")


def serving(title: str) -> tuple[Benchmark, Row]:
    """Returns the benchmark and row that the paper's tables call `title`.

    Raises:
      ValueError: if no row has that title.
    """
    for benchmark in BENCHMARKS.values():
        for row in benchmark.rows:
            if title in row.titles:
                return benchmark, row
    raise ValueError(f"no benchmark has a row {title!r}.")
