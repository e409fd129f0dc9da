"""Reads a finished run for its pages: its record, and the numbers of its results artifact."""

import dataclasses
import functools
import gc
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.lookup.runs import find_run
from flows.report.cells import CellKey, Plan, Report, Section
from flows.report.gather import gather_report, trained_checkpoint
from flows.report.json_file import read_json
from flows.steps.labels import labels_of
from infra.errors import ConfigError
from infra.store.manifest import kind_of_key
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
class ScoredRun:
    """A run that ended with scores, whether or not it came to a table.

    Attributes:
      run: full name of the run, as in the file name of its record.
      record: the record, as `end_run_record` wrote it.
      report: the report of its scores.
      pretrainings: transfer seed -> number of its pretraining, where that is known.
    """

    run: str
    record: Mapping[str, Any]
    report: Report
    pretrainings: Mapping[int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study(ScoredRun):
    """A finished run, with the report that its artifact's `results.json` has.

    Attributes:
      results: the results artifact.
    """

    results: Artifact

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
    record = _recorded(store, run)
    # A full name is the name of a record; else it is a study's, whose newest run is meant.
    if record is None or not record["results"]:
        record = find_run(store, run)
    results = store.get_cached(record["results"])
    plan = results.manifest.config["plan"]
    return Study(
        run=record["run"],
        record=record,
        report=_read_results_report(results.path / "results.json"),
        pretrainings={
            seed: number
            for one in (plan, *plan.get("also", ()))
            for seed, number in zip(one["seeds"], one.get("pretrainings") or (), strict=False)
        },
        results=results,
    )


def scored_run_of(store: Store, run: str) -> ScoredRun:
    """Returns a finished run; or one that failed before its table, with the scores that it has.

    Args:
      store: the store of the run.
      run: as for `study_of`.

    Raises:
      ConfigError: if there is no such run.
      ValueError: if its scores make no table, since they differ in data or decoding.
    """
    record = _recorded(store, run)
    if record is None or record["results"] or not has_scores(record):
        return study_of(store, run)
    # The plan is what the scores cover: each is told by the labels of the step that made it.
    found: dict[CellKey, Artifact] = {}
    pretrainings: dict[int, int] = {}
    for artifact in map(store.get_cached, filter(_is_scores, record["artifacts"])):
        labels = labels_of(artifact.manifest)
        if labels.budget is None or labels.seed is None:
            continue
        views = "".join(f"@{part}" for part in (labels.pixels, labels.backbone) if part)
        row = f"{labels.benchmark}{views}"
        cell = CellKey(benchmark=row, method=labels.method, budget=labels.budget, seed=labels.seed)
        found[cell] = artifact
        answers = store.get_cached(artifact.manifest.inputs["predictions"].key).manifest
        start = trained_checkpoint(answers, store.get_cached).inputs.get("init")
        number = labels_of(store.get_cached(start.key).manifest).pretraining if start else None
        pretrainings[cell.seed] = number or 0
    if not found:
        return study_of(store, run)
    seeds = tuple(sorted(pretrainings))
    budgets = tuple(sorted({cell.budget for cell in found}))
    methods = tuple(dict.fromkeys(cell.method for cell in found))
    plan = Plan(
        methods=methods,
        benchmarks=tuple(dict.fromkeys(cell.benchmark for cell in found)),
        budgets=budgets,
        seeds=seeds,
        budgets_of=dict.fromkeys(methods, budgets),
        pretrainings=tuple(pretrainings[seed] for seed in seeds),
    )
    artifacts = {str(cell): artifact for cell, artifact in found.items()}
    report = gather_report(plan, (), artifacts, store.get_cached)
    return ScoredRun(run=run, record=record, report=report, pretrainings=pretrainings)


def _recorded(store: Store, run: str) -> Mapping[str, Any] | None:
    """Returns the record of a run by its full name; None if there is none."""
    if not _RUN.fullmatch(run):
        raise ConfigError(f"RUN must be letters, digits, '.', '-' or '_', got {run!r}.")
    try:
        return read_run(store.files, run)
    except FileNotFoundError:
        return None


def has_scores(record: Mapping[str, Any]) -> bool:
    """Returns whether a run that ended can be compared: it has a table, or scores at least."""
    return bool(record["results"]) or (
        record["finished"] is not None and any(map(_is_scores, record["artifacts"]))
    )


def _is_scores(key: str) -> bool:
    return kind_of_key(key) == "scores"


@functools.lru_cache(maxsize=4)
def _read_results_report(path: Path) -> Report:
    """Returns the report of a results artifact, whose files never change."""
    text = path.read_text(encoding="utf-8")
    # A report of 10,000 cells is half a million objects, all of which stay: looking for garbage
    # among them would take as long as reading them.
    gc.disable()
    try:
        return read_json(text)
    finally:
        gc.enable()
