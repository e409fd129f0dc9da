"""`parcel results`: shows the table of a run, or of a file of scores."""

from pathlib import Path

from flows.lineage.runs import results_artifact
from flows.report.by_question_type import question_types_to_csv
from flows.report.cells import Plan, Report
from flows.report.cells_file import cells_to_csv
from flows.report.render import FORMATS, comparisons_to_csv, render_report
from flows.report.scores_file import ScoreFileError, read_scores
from flows.steps.registry import typed_config
from infra.errors import ConfigError
from infra.store.store import Artifact, Store

OF_RUNS = ("comparisons", "cells", "asked")
"""Further formats, for runs only: CSV of every comparison, of every single score, of the scores by
what was asked."""


def show_results(
    store: Store, run: str | None, form: str, scores: Path | None, *, mixed: bool = False
) -> str:
    """Returns a results table as text.

    Args:
      store: the store that holds the runs.
      run: a study's name; None with `scores`.
      form: one of `FORMATS`, or of `OF_RUNS` with a run.
      scores: a score file, instead of a run.
      mixed: whether to average a run's scores over several library versions and accelerators.

    Raises:
      ConfigError: if the request or the score file is wrong.
    """
    if form not in (*FORMATS, *OF_RUNS):
        formats = ", ".join((*FORMATS, *OF_RUNS))
        raise ConfigError(f"--format must be one of {formats}, html, got {form!r}.")
    # A score file has means only: no seeds, items or artifacts to list.
    if form in OF_RUNS and scores is not None:
        raise ConfigError(f"--format {form} needs RUN, got --scores; use --format csv.")
    if run is not None and scores is None:
        results = results_artifact(store, run)
        # Two forms are computed from the scores each time; the others lie in the artifact, unless
        # `mixed` asks for scores that it leaves out.
        if form == "cells":
            return cells_to_csv(*report_of(store, results, mixed=mixed), store.get_cached)
        if form == "asked":
            report, plan = report_of(store, results, mixed=mixed)
            return question_types_to_csv(report, plan, results.manifest.inputs, store.get)
        if mixed:
            return _mixed_table(store, results, form)
        if form == "comparisons":
            return (results.path / "comparisons.csv").read_text(encoding="utf-8")
        return (results.path / f"results.{form}").read_text(encoding="utf-8")
    if run is not None or scores is None:
        got = "neither" if run is None else "both"
        raise ConfigError(f"results needs either RUN or --scores FILE.csv, got {got}.")
    if mixed:
        raise ConfigError("--mixed needs RUN, got --scores: a score file has no platforms.")
    try:
        return render_report(read_scores(scores), form)
    except ScoreFileError as error:
        raise ConfigError(f"--scores: {error}") from None


def _mixed_table(store: Store, results: Artifact, form: str) -> str:
    report, _ = report_of(store, results, mixed=True)
    return comparisons_to_csv(report) if form == "comparisons" else render_report(report, form)


def report_of(store: Store, results: Artifact, *, mixed: bool) -> tuple[Report, Plan]:
    """Returns the report of a results artifact's inputs, and its plan.

    With `mixed` the report holds the scores of every platform.
    """
    from flows.report.gather import gather_report

    spec = typed_config("results", results.manifest.config)
    artifacts = {role: store.get(entry.key) for role, entry in results.manifest.inputs.items()}
    report = gather_report(spec.plan, spec.accepted, artifacts, store.get_cached, mixed=mixed)
    return report, spec.plan
