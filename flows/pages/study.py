"""A finished run as its pages show it: its record, and the numbers of its results artifact."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from flows.study.load import ConfigError
from flows.study.runs import find_run
from infra.store.gc import RUNS
from infra.store.store import Artifact, Store

_RUN = re.compile(r"\w[\w.-]*")
"""A run's name, which becomes a file's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """One method at one budget, on one row of the results: what its items are compared by.

    Attributes:
      method: which.
      budget: its soft tokens [tokens].
      artifacts: transfer seed -> key of the predictions.
    """

    method: str
    budget: int
    artifacts: Mapping[int, str]

    @property
    def name(self) -> str:
        """Names it on pages and in addresses."""
        return f"{self.method}@{self.budget}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A finished run.

    Attributes:
      run: its full name, of the file of its record.
      record: as `note_run` wrote it.
      results: its results artifact.
      report: the artifact's `results.json`.
    """

    run: str
    record: Mapping[str, Any]
    results: Artifact
    report: Mapping[str, Any]

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """One benchmark's cells after the other, as `results.json` has them."""
        return self.report["benchmarks"]

    def row(self, benchmark: str) -> Mapping[str, Any]:
        """Returns the cells of a benchmark.

        Raises:
          KeyError: if the table has no such row, with those it has.
        """
        for row in self.rows:
            if row["benchmark"] == benchmark:
                return row
        known = ", ".join(row["benchmark"] for row in self.rows)
        raise KeyError(f"The table of {self.run} has no row {benchmark!r}. It has: {known}.")

    def columns(self, benchmark: str) -> dict[str, Column]:
        """Returns the scored cells of a benchmark by name, in the order of the table.

        Raises:
          KeyError: as `row` does.
        """
        columns = (
            Column(
                method=cell["method"],
                budget=cell["budget"],
                artifacts={score["seed"]: score["artifact"] for score in cell["scores"]},
            )
            for cell in self.row(benchmark)["cells"]
            if cell["scores"]
        )
        return {column.name: column for column in columns}


def study_of(store: Store, run: str) -> Study:
    """Returns a finished run.

    Args:
      store: where it is.
      run: its full name, or the study's name for the newest run of it.

    Raises:
      ConfigError: if there is no such run.
    """
    if not _RUN.fullmatch(run):
        raise ConfigError(f"RUN must be letters, digits, '.', '-' or '_', got {run!r}.")
    try:
        record = json.loads(store.files.read(f"{RUNS}/{run}.json"))
    except FileNotFoundError:
        record = None
    if record is None or not record["results"]:
        record = find_run(store, run)
    results = store.recall(record["results"])
    report = json.loads((results.path / "results.json").read_text(encoding="utf-8"))
    name = f"{record['name']}-{results.key.removeprefix('results-')}"
    return Study(run=name, record=record, results=results, report=report)
