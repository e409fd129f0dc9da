"""Reads a finished run for its pages: its record, and the numbers of its results artifact."""

import dataclasses
import functools
import gc
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.lookup.runs import find_run
from flows.report.cells import Report, Section
from flows.report.json_file import read_json
from infra.errors import ConfigError
from infra.store.records import read_run
from infra.store.store import Artifact, Store

_RUN = re.compile(r"\w[\w.-]*")
"""Matches a run's name, which becomes part of a file's path."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """The answers of one method at one budget on a benchmark, the unit in which items are compared.

    Attributes:
      method: name of the method.
      budget: soft tokens per image [tokens].
      artifacts: transfer seed -> key of the scores.
    """

    method: str
    budget: int
    artifacts: Mapping[int, str]

    @property
    def name(self) -> str:
        """The column's name on pages and in addresses."""
        return f"{self.method}@{self.budget}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A finished run.

    Attributes:
      run: full name of the run, as in the file name of its record.
      record: the record, as `end_run_record` wrote it.
      results: the results artifact.
      report: the report, as the artifact's `results.json` has it.
    """

    run: str
    record: Mapping[str, Any]
    results: Artifact
    report: Report

    def section(self, benchmark: str) -> Section:
        """Returns the section of a benchmark, with its cells.

        Raises:
          KeyError: if the table has no such row; the message lists those it has.
        """
        for section in self.report.sections:
            if section.benchmark == benchmark:
                return section
        known = ", ".join(section.benchmark for section in self.report.sections)
        raise KeyError(f"The table of {self.run} has no row {benchmark!r}. It has: {known}.")

    def columns(self, benchmark: str) -> dict[str, Column]:
        """Returns the scored cells of a benchmark by name, in the order of the table.

        Raises:
          KeyError: if the table has no such row.
        """
        columns = (
            Column(
                method=cell.method,
                budget=cell.budget,
                artifacts={score.seed: score.artifact for score in cell.scores},
            )
            for cell in self.section(benchmark).cells
            if cell.scores
        )
        return {column.name: column for column in columns}


def study_of(store: Store, run: str) -> Study:
    """Returns a finished run.

    Args:
      store: the store of the run.
      run: the run's full name, or the study's name for its newest run.

    Raises:
      ConfigError: if there is no such run.
    """
    if not _RUN.fullmatch(run):
        raise ConfigError(f"RUN must be letters, digits, '.', '-' or '_', got {run!r}.")
    try:
        record = read_run(store.files, run)
    except FileNotFoundError:
        record = None
    # A full name is the name of a record; else it is a study's, whose newest run is meant.
    if record is None or not record["results"]:
        record = find_run(store, run)
    results = store.get_cached(record["results"])
    report = _read_report(results.path / "results.json")
    return Study(run=record["run"], record=record, results=results, report=report)


@functools.lru_cache(maxsize=4)
def _read_report(path: Path) -> Report:
    """Returns the report of a results artifact, whose files never change."""
    text = path.read_text(encoding="utf-8")
    # A report of 10,000 cells is half a million objects, all of which stay: looking for garbage
    # among them would take as long as reading them.
    gc.disable()
    try:
        return read_json(text)
    finally:
        gc.enable()
