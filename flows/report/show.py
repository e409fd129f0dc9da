"""`parcel results`: the table of a run, or of a file of scores."""

from pathlib import Path

from pydantic import TypeAdapter

from flows.report.cells import Report
from flows.report.render import FORMATS, render
from flows.report.scores_file import ScoreFileError, read_scores
from flows.steps.kinds.results import ResultsSpec
from flows.study.load import ConfigError
from flows.study.runs import results_of
from infra.store.store import Artifact, Store


def show_results(
    store: Store, run: str | None, form: str, scores: Path | None, *, mixed: bool = False
) -> str:
    """Returns a results table as text.

    Args:
      store: where runs are.
      run: a study's name; None with `scores`.
      form: one of `FORMATS`.
      scores: a score file, instead of a run.
      mixed: whether a run's scores of several library versions and accelerators are averaged.

    Raises:
      ConfigError: if the request or the score file is wrong.
    """
    if form not in FORMATS:
        raise ConfigError(f"--format must be one of {', '.join(FORMATS)}, html, got {form!r}.")
    if run is not None and scores is None:
        results = results_of(store, run)
        if mixed:
            return render(_mixed(store, results), form)
        return (results.path / f"results.{form}").read_text(encoding="utf-8")
    if run is not None or scores is None:
        got = "neither" if run is None else "both"
        raise ConfigError(f"results needs either RUN or --scores FILE.csv, got {got}.")
    if mixed:
        raise ConfigError("--mixed goes with RUN, got --scores: a file says nothing of platforms.")
    try:
        return render(read_scores(scores), form)
    except ScoreFileError as error:
        raise ConfigError(f"--scores: {error}") from None


def _mixed(store: Store, results: Artifact) -> Report:
    """Returns the report of the same inputs, with every score in it."""
    from flows.report.gather import gather

    spec = TypeAdapter(ResultsSpec).validate_python(results.manifest.config)
    artifacts = {role: store.get(entry.key) for role, entry in results.manifest.inputs.items()}
    return gather(spec.plan, spec.accepted, artifacts, store.recall, mixed=True)
