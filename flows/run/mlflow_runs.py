"""Writes runs to MLflow, where `MLFLOW_TRACKING_URI` says, into the experiment `parcel`."""

import itertools
import os
import re
from typing import Any

from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
from mlflow.entities import Metric, Param, RunTag  # pyright: ignore[reportMissingImports]

from flows.run.tracked_run import TrackedRun

_ID = "parcel.id"
"""Tag by which a run is found again, whoever sends it."""
_STATUS = {"complete": "FINISHED", "with holes": "FINISHED", "cancelled": "KILLED"}
"""How a run ended -> MLflow's word; "FAILED" for the others."""
_BATCH = 100
"""Most entries of a call. Source: MLflow's REST API, `log-batch`: 1,000 metrics, 100 parameters."""


class MlflowRuns:
    """The runs of one experiment. Without `MLFLOW_EXPERIMENT_NAME` it is `parcel`."""

    def __init__(self) -> None:
        self._client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "parcel")
        experiment = self._client.get_experiment_by_name(name)
        self._experiment: str = (
            experiment.experiment_id if experiment else self._client.create_experiment(name)
        )

    def write(self, run: TrackedRun) -> str:
        """Writes a run, or what is missing of it; returns MLflow's id of it."""
        # Of a run that was cut off, what is there is not written again: parameters cannot be
        # changed, and a second point of the same step would be drawn.
        began, ended = round(run.began * 1000), round(run.ended * 1000)
        found = self._client.search_runs(
            [self._experiment], f"tags.`{_ID}` = '{run.id}'", max_results=1
        )
        if found and run.type == "stage" and found[0].info.status == "FINISHED":
            return found[0].info.run_id
        tracked = (
            found[0]
            if found
            else self._client.create_run(self._experiment, began, {_ID: run.id}, run.name)
        )
        run_id, data = tracked.info.run_id, tracked.data
        facts = {"type": run.type, "page": run.page, **run.facts}
        tags = [RunTag(f"parcel.{_name(name)}", text) for name, text in facts.items()]
        self._log(run_id, "tags", [*tags, RunTag("mlflow.note.content", run.note)])
        config = {_name(name): str(value) for name, value in run.config.items()}
        params = [Param(name, text) for name, text in config.items() if name not in data.params]
        self._log(run_id, "params", params)
        # A stage's numbers at its last step, a study's at 0.
        last = run.curves[-1].step if run.curves else 0
        metrics = [
            Metric(_name(name), value, round(point.at * 1000), point.step)
            for point in run.curves
            for name, value in point.values.items()
        ]
        written = {
            (name, point.step)
            for name in {metric.key for metric in metrics} & data.metrics.keys()
            for point in self._client.get_metric_history(run_id, name)
        }
        scores = {_name(name): value for name, value in run.scores.items()}
        self._log(
            run_id,
            "metrics",
            [metric for metric in metrics if (metric.key, metric.step) not in written]
            + [
                Metric(name, value, ended, last)
                for name, value in scores.items()
                if data.metrics.get(name) != value
            ],
        )
        for name, table in run.tables.items():
            self._client.log_text(run_id, table.to_csv(), f"{name}.csv")
        self._client.set_terminated(run_id, _STATUS.get(run.outcome, "FAILED"), ended)
        return run_id

    def _log(self, run_id: str, what: str, entries: list[Any]) -> None:
        for start in itertools.count(0, _BATCH):
            if not (part := entries[start : start + _BATCH]):
                return
            self._client.log_batch(run_id, **{what: part}, synchronous=True)


def _name(name: str) -> str:
    """Returns a name with a point for each character that MLflow does not take."""
    return re.sub(r"[^\w.:/ -]", ".", name)
