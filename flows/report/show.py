"""`parcel results`: the table of a run, or of a file of scores."""

from pathlib import Path

from flows.report.render import FORMATS, render
from flows.report.scores_file import ScoreFileError, read_scores
from flows.study.load import ConfigError
from flows.study.runs import results_of
from infra.store.store import Store


def show_results(store: Store, run: str | None, form: str, scores: Path | None) -> str:
    """Returns a results table as text.

    Args:
      store: where runs are.
      run: a study's name; None with `scores`.
      form: one of `FORMATS`.
      scores: a score file, instead of a run.

    Raises:
      ConfigError: if the request or the score file is wrong.
    """
    if form not in FORMATS:
        raise ConfigError(f"--format must be one of {', '.join(FORMATS)}, html, got {form!r}.")
    if run is not None and scores is None:
        return (results_of(store, run).path / f"results.{form}").read_text(encoding="utf-8")
    if run is not None or scores is None:
        got = "neither" if run is None else "both"
        raise ConfigError(f"results needs either RUN or --scores FILE.csv, got {got}.")
    try:
        return render(read_scores(scores), form)
    except ScoreFileError as error:
        raise ConfigError(f"--scores: {error}") from None
