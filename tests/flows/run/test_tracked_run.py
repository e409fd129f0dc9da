"""What trackers are told: of a training its curves, of a study its scores, table and trainings."""

import json
from pathlib import Path

import pytest

from flows.lookup.runs import end_run_record, record_name
from flows.run.tracked_run import TrackedRun, tracked_stage, tracked_study, trainings_of
from infra.store.manifest import Recipe
from infra.store.records import read_run
from infra.store.store import Artifact, Attempt, Store
from model.files import METRICS
from tests.flows.pages.studies import RUN, write_study

UI = "http://127.0.0.1:4200/v2"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("study") / "store")
    write_study(store)
    return store


def study_of(store: Store, results: str = "", **config: object) -> TrackedRun:
    """Returns the study as it is told of a run with this config, which found a training."""
    results = results or next(iter(store.artifacts("results"))).key
    values = {"name": "told", "seed": 3, **config}
    trained = next(a for a in store.artifacts("checkpoint") if METRICS in a.manifest.files)
    end_run_record(store, values, RUN, results=results, artifacts=[trained.key], failed=())
    record = read_run(store.files, record_name("told", RUN))
    assert [artifact.key for artifact in trainings_of(store, record)] == [trained.key]
    return tracked_study(store, record, UI, {trained.key: "its-run"})


def test_a_training_has_each_step_once_with_what_was_watched(store: Store):
    trained = next(a for a in store.artifacts("checkpoint") if METRICS in a.manifest.files)
    told = tracked_stage(trained, UI)
    assert (told.id, told.name, told.type) == (trained.key, trained.manifest.name, "stage")
    assert told.page == f"{UI}/runs/flow-run/{RUN}"
    assert [point.step for point in told.curves] == [*range(1, 13)]
    assert told.curves[2].values == {"loss": 5 / 3}
    assert told.curves[3].values == {
        "loss": 1.25,
        "loss/caption/16": 4.0,
        "loss/vqa/16": 4.0,
        "score/probe/16": 4.0,
        "loss/caption/64": 16.0,
        "loss/vqa/64": 16.0,
        "score/probe/64": 16.0,
    }


def test_numbers_of_a_log_are_curves_and_their_times_those_of_the_training(tmp_path: Path):
    row = {"step": 7, "loss": 1.5, "gradient_norms": {"text": 2.5}, "seconds": 11.0}
    told = tracked_stage(commit(tmp_path, json.dumps(row), {"rate": {"peak": 0.25}}), "")
    ((step, at, values),) = told.curves
    assert (step, at - told.began) == (7, 11.0)
    assert values == {"loss": 1.5, "gradient_norms.text": 2.5}
    assert told.config == {"rate.peak": 0.25, "seed": 13}
    assert told.scores == {"steps": 7}  # The loss has a curve.
    assert told.page == ""


def test_nothing_secret_is_told(tmp_path: Path):
    config = {"api_key": "x1y2z3w4", "uri": "https://me:x1y2z3w4@host/data"}
    told = tracked_stage(commit(tmp_path, "", config), UI)
    assert "x1y2z3w4" not in repr(told)
    store = Store(tmp_path / "study")
    write_study(store)
    assert "x1y2z3w4" not in repr(study_of(store, **config))


def test_a_study_has_its_scores_with_intervals_its_table_and_its_trainings(tmp_path: Path):
    store = Store(tmp_path / "store")
    write_study(store)
    made = next(iter(store.artifacts("results"))).path
    report = json.loads((made / "results.json").read_text())
    section = report["benchmarks"][0]
    section["cells"][0] |= {"mean": 51.5, "low": 40.25, "high": 61.0}
    told = study_of(store, commit_results(store, json.dumps(report), made / "results.csv"))
    cell = section["cells"][0]
    name = f"{section['benchmark']}/{cell['method']}/{cell['budget']}"
    assert {end: told.scores[f"{name}/{end}"] for end in ("mean", "low", "high")} == {
        "mean": 51.5,
        "low": 40.25,
        "high": 61.0,
    }
    mean = report["aggregates"][0]
    assert told.scores[f"{mean['name']}/{mean['method']}/{mean['budget']}/mean"] == mean["mean"]
    head, rows = told.tables["results"]
    assert (head[0], rows[0][0]) == ("benchmark", section["benchmark"])
    assert {len(row) for row in rows} == {len(head)}
    ((stage, key, run),) = told.tables["stages"].rows
    assert (store.get(key).manifest.name, run) == (stage, "its-run")
    assert told.page == f"{UI}/runs/flow-run/{RUN}"
    assert told.outcome == "complete"


def test_a_study_is_named_by_its_config_but_not_by_where_it_runs(store: Store):
    first = study_of(store, compute={"num_cpus": 2}, track=["mlflow"])
    assert study_of(store, compute={"num_cpus": 5}, track=["wandb"]).id == first.id
    assert study_of(store, num_seeds=5).id != first.id


def commit_results(store: Store, report: str, table: Path) -> str:
    attempt = Attempt(store, Recipe(kind="results", name="results", seed=2))
    (attempt.path / "results.json").write_text(report)
    (attempt.path / "results.csv").write_text(table.read_text())
    return attempt.commit({}).key


def commit(folder: Path, log: str, config: dict[str, object]) -> Artifact:
    attempt = Attempt(
        Store(folder / "store"), Recipe(kind="checkpoint", name="stage1", config=config, seed=13)
    )
    (attempt.path / METRICS).write_text(log)
    attempt.counts = {"steps": 7, "loss": 1.5}
    return attempt.commit({})
