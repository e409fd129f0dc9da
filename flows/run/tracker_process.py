"""The process that writes a run's trainings, and then its study, to one tracker.

Its words are lines of its input, its answers lines of its output:

    stage KEY     an artifact that is ready           written
    study RUN     the record of the run, at its end   failed WHY
"""

import os
import sys
from typing import Protocol

from flows.run.tracked_run import TrackedRun, tracked_stage, tracked_study, trainings_of
from infra.errors import one_line_message
from infra.store.records import read_run
from infra.store.store import Store

_OTHERS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "WANDB_ERROR_REPORTING": "false",
}
"""Settings of the libraries, where their user has none: they send no more, and give up soon."""


class Writer(Protocol):
    """A tracker."""

    def write(self, run: TrackedRun) -> str:
        """Writes a run, or what is missing of it; returns the tracker's name of it."""
        ...


class RunWriter:
    """Writes what a run made to a tracker, each training once.

    Args:
      store: the run's store.
      writer: the tracker.
      ui: address of Prefect's UI [URI].
    """

    def __init__(self, store: Store, writer: Writer, ui: str) -> None:
        self._store, self._writer, self._ui = store, writer, ui
        self._stages: dict[str, str] = {}

    def write_stage(self, key: str) -> None:
        """Writes the training that made an artifact."""
        if key not in self._stages:
            artifact = self._store.get(key)
            self._stages[key] = self._writer.write(tracked_stage(artifact, self._ui))

    def write_study(self, run: str) -> None:
        """Writes the study of a run, and before it each of its trainings that is not written."""
        record = read_run(self._store.files, run)
        for artifact in trainings_of(self._store, record):
            self._stages[artifact.key] = self._writer.write(tracked_stage(artifact, self._ui))
        self._writer.write(tracked_study(self._store, record, self._ui, self._stages))


def writer_of(tracker: str, store: Store) -> Writer:
    """Returns a tracker by its name."""
    if tracker == "mlflow":
        from flows.run.mlflow_runs import MlflowRuns

        return MlflowRuns()
    from flows.run.wandb_runs import WandbRuns

    return WandbRuns(store.state / "tracked")


def main() -> None:
    """Writes what its input names until it ends; see the module."""
    uri, tracker, ui = sys.argv[1:]
    os.nice(10)  # The run comes first.
    for name, value in _OTHERS.items():
        os.environ.setdefault(name, value)
    # The libraries print what they like; only answers go to whoever started this process.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    runs: RunWriter | None = None
    for line in sys.stdin:
        word, name = line.split()
        try:
            # In here: also a tracker that cannot be opened is an answer, and tried again.
            if runs is None:
                store = Store(uri)
                runs = RunWriter(store, writer_of(tracker, store), ui)
            runs.write_stage(name) if word == "stage" else runs.write_study(name)
            answers.write("written\n")
        except Exception as error:
            answers.write(f"failed {one_line_message(error)}\n")


if __name__ == "__main__":
    main()
