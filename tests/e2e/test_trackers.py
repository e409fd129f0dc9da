"""A whole study beside both trackers: killed, resumed, and then reused by another study."""

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import PARCEL, SMALLEST, environment

mlflow: Any = pytest.importorskip("mlflow", reason="no MLflow: `make trackers` has it")
pytest.importorskip("wandb", reason="no W&B: `make trackers` has it")

pytestmark = [pytest.mark.e2e, pytest.mark.night]

TRAININGS = {
    "stage1 vanilla": [1, 2, 3, 4],
    "intermediary vanilla": [1, 2],
    "transfer vanilla chartqa seed=56703": [1, 2, 3, 4],
}
"""Trainings of the smallest study -> steps that they log."""
CELL = "chartqa:test_human/vanilla/256"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both trackers, after a study that was killed, resumed, and reused."""
    folder = tmp_path_factory.mktemp("trackers")
    store = folder / "store"
    places = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/runs.db",
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
    }
    env = {**environment(store), **places}
    words = [PARCEL, "run", SMALLEST, "track=[mlflow, wandb]"]
    log = folder / "killed.log"
    with log.open("w") as out:
        killed = subprocess.Popen(words, env=env, cwd=folder, stdout=out, stderr=out)
    while not re.search("made .*intermediary vanilla", log.read_text()):
        assert killed.poll() is None, log.read_text()[-3000:]
        time.sleep(0.1)
    killed.kill()
    killed.wait()
    for more in ([], ["name=again"]):
        done = subprocess.run([*words, *more], env=env, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert "could not be written to" not in done.stderr
    return folder


def test_mlflow_has_each_training_and_each_of_their_steps_once(told: Path):
    mlflow.set_tracking_uri(f"sqlite:///{told}/runs.db")
    client = mlflow.MlflowClient()
    runs = mlflow.search_runs(experiment_names=["parcel"], output_format="list")
    stages = [run for run in runs if run.data.tags["parcel.type"] == "stage"]
    studies = {run.info.run_name: run for run in runs if run not in stages}
    assert sorted(run.info.run_name for run in stages) == sorted(TRAININGS)
    for run in stages:
        steps = TRAININGS[run.info.run_name]
        for name in ("loss", "learning_rate", "gradient_norm", "goodput"):
            history = client.get_metric_history(run.info.run_id, name)
            assert [point.step for point in history] == steps, (run.info.run_name, name)
        assert len(client.get_metric_history(run.info.run_id, "tokens_per_second")) > 0
        assert run.data.params["train.total_steps"] == str(steps[-1])
    assert {*studies} == {"smallest", "again"}
    ids = {run.info.run_id for run in stages}
    for run in studies.values():
        assert {f"{CELL}/{end}" for end in ("mean", "low", "high")} <= {*run.data.metrics}
        assert "/runs/flow-run/" in run.data.tags["parcel.page"]
        files = {
            name: mlflow.artifacts.load_text(f"{run.info.artifact_uri}/{name}.csv")
            for name in ("results", "stages")
        }
        assert files["results"].startswith("benchmark,method,budget,mean,")
        lines = files["stages"].splitlines()[1:]
        assert {line.rpartition(",")[2] for line in lines} == ids  # The one run of each, linked.


def test_wandb_has_each_training_and_each_of_their_steps_once(told: Path):
    from tests.flows.run.test_wandb_runs import offline_runs

    runs = offline_runs(told / "wandb")
    assert len({run["id"] for run in runs}) == len(runs)
    by_name = {run["name"]: run for run in runs}
    assert sorted(run["name"] for run in runs) == sorted([*TRAININGS, "smallest", "again"])
    for name, steps in TRAININGS.items():
        rows = by_name[name]["history"]
        assert [row["_step"] for row in rows] == steps, name
        assert all({"loss", "learning_rate", "gradient_norm"} <= {*row} for row in rows)
    for name in ("smallest", "again"):
        study = by_name[name]
        assert {f"{CELL}/{end}" for end in ("mean", "low", "high")} <= {*study["summary"]}
        assert "/runs/flow-run/" in study["notes"]
        (folder,) = (told / "wandb").glob(f"offline-run-*-{study['id']}")
        (table,) = folder.glob("files/media/table/stages_*.table.json")
        rows = json.loads(table.read_text())["data"]
        assert {run: stage for stage, _, run in rows} == {
            by_name[name]["id"]: name for name in TRAININGS
        }
        assert len([*folder.glob("files/media/table/results_*.table.json")]) == 1
