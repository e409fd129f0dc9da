"""Runs in MLflow, read back by MLflow: each once, with each step once, however often written."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from tests.flows.run.tracked import STAGE, STUDY, completed

mlflow: Any = pytest.importorskip("mlflow", reason="no MLflow: `make trackers` has it")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database for all tests here: MLflow takes long to make one."""
    folder = tmp_path_factory.mktemp("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{folder}/runs.db")
    return folder


@pytest.fixture
def runs(database: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    from flows.run.mlflow_runs import MlflowRuns

    monkeypatch.chdir(database)  # Files of runs lie in the folder in which they are written.
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)
    return MlflowRuns()


def written() -> list[Any]:
    experiment = os.environ["MLFLOW_EXPERIMENT_NAME"]
    return mlflow.search_runs(experiment_names=[experiment], output_format="list")


def steps(run_id: str, name: str) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in mlflow.MlflowClient().get_metric_history(run_id, name)]


def test_a_stage_has_its_config_its_curves_and_its_page(runs):
    assert runs.write(STAGE) == written()[0].info.run_id
    (run,) = written()
    assert run.info.run_name == "stage1 vanilla"
    assert (run.info.start_time, run.info.end_time) == (1_750_000_000_000, 1_750_000_060_000)
    assert run.info.status == "FINISHED"
    assert run.data.params == {
        "train.optimizer.peak_lr": "0.001",
        "methods": "['vanilla', 'parcel']",
        "seed": "7",
    }
    assert steps(run.info.run_id, "loss") == [(1, 5.0), (2, 2.5), (5, 1.0)]
    assert steps(run.info.run_id, "tokens_per_second") == [(1, 11.0), (2, 22.0), (5, 55.0)]
    assert steps(run.info.run_id, "steps") == [(5, 5)]
    assert run.data.tags["parcel.page"] == STAGE.page
    assert STAGE.page in run.data.tags["mlflow.note.content"]
    assert run.data.tags["parcel.method"] == "vanilla"


def test_a_stage_that_was_cut_off_is_completed_and_one_that_was_not_is_left(runs, monkeypatch):
    # Cut off: its first points are there, and it has not ended.
    with monkeypatch.context() as patch:
        patch.setattr(runs._client, "set_terminated", lambda *_: None)
        runs.write(dataclasses.replace(STAGE, curves=STAGE.curves[:2]))
    for _ in range(2):
        runs.write(STAGE)
        (run,) = written()
        assert steps(run.info.run_id, "loss") == [(1, 5.0), (2, 2.5), (5, 1.0)]
    # A person's own word on it stays, since nothing is written any more.
    mlflow.MlflowClient().set_tag(run.info.run_id, "parcel.method", "mine")
    runs.write(STAGE)
    assert written()[0].data.tags["parcel.method"] == "mine"


def test_a_study_is_one_run_that_a_later_one_completes(runs):
    runs.write(STUDY)
    runs.write(completed(STUDY))
    (run,) = written()
    assert run.info.status == "FINISHED"
    # MLflow takes no @ in a name.
    assert run.data.metrics == {
        "chartqa.448/parcel/64/mean": 51.25,
        "chartqa.448/parcel/64/low": 40.5,
        "msvd/parcel/64/mean": 30.0,
    }
    assert steps(run.info.run_id, "chartqa.448/parcel/64/mean") == [(0, 51.25)]
    assert run.data.tags["parcel.outcome"] == "complete"
    assert run.data.tags["parcel.page"].endswith("/three")
    table = mlflow.artifacts.load_text(f"{run.info.artifact_uri}/results.csv")
    assert table == 'benchmark,score\nchartqa@448,51.25\n"msvd, all",\n'


def test_a_long_curve_and_a_long_config_are_whole(runs):
    point = STAGE.curves[0]
    long = dataclasses.replace(
        STAGE,
        curves=[point._replace(step=step) for step in range(1, 1203)],
        config={f"key{number}": number for number in range(203)},
    )
    runs.write(long)
    (run,) = written()
    assert [step for step, _ in steps(run.info.run_id, "loss")] == [*range(1, 1203)]
    assert len(run.data.params) == 203
