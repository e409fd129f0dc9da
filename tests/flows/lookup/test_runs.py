"""Records of runs: one each, from its beginning, and without credentials."""

import dataclasses
import getpass
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pydantic
import pytest

from flows.lookup.runs import (
    begin_run_record,
    close_dead_records,
    end_run_record,
    ended_run_records,
    find_run,
    run_outcome,
    stop_run_record,
)
from flows.study.load import check_config, load
from flows.study.study import StudyConfig
from flows.sweep.form_values import study_of_form
from infra.errors import ConfigError
from infra.store import gc
from infra.store.records import RecordError, beginning_sha256, run_records
from infra.store.redact import redact
from infra.store.store import Store
from tests.gcs.server import GCS

CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))


def test_record_holds_no_credential(tmp_path: Path):
    store = Store(tmp_path)
    options = ["--runner=DataflowRunner", "--password", "x7Kq"]
    config = {"name": "toy", "prepare": {"runner_options": options}}
    failed = ["prepare web: https://me:x7Kq@host/ is not there"]
    end_run_record(
        store,
        config,
        "run",
        results="results-0123456789abcdef-01234567",
        artifacts=[],
        failed=failed,
    )
    (path,) = (tmp_path / "runs").glob("*.json")
    assert "x7Kq" not in path.read_text()
    assert json.loads(path.read_text())["config"]["prepare"]["runner_options"][0] == options[0]


@pytest.mark.parametrize("path", [None, *CONFIGS], ids=lambda path: path.stem if path else "demo")
def test_nothing_of_a_shipped_config_looks_like_a_credential(path: Path | None):
    config = dataclasses.asdict(load(path))
    assert redact(config) == config


def end(store: Store, run_id: str, results: str | None = None, **fields: Any) -> str:
    """Ends a run of the study `toy`; returns the outcome."""
    fields = {"artifacts": [], "failed": [], **fields}
    return end_run_record(store, {"name": "toy"}, run_id, results=results, **fields)


def test_runs_with_equal_results_have_records_of_their_own(tmp_path: Path):
    store, results = Store(tmp_path), "results-0123456789abcdef-01234567"
    first, second = ("checkpoint-0123456789abcdef-01234567", "checkpoint-f123456789abcdef-01234567")
    end(store, "first", results, artifacts=[first])
    end(store, "second", results, artifacts=[second])
    end(store, "third", results, artifacts=[first])  # A run that had nothing to do.
    assert {r["run"]: r["artifacts"] for r in ended_run_records(store).values()} == {
        "toy-first": [first],
        "toy-second": [second],
        "toy-third": [first],
    }
    assert find_run(store, "toy-sec")["artifacts"] == [second]
    assert find_run(store, "toy")["run"] == "toy-third"


def test_a_record_says_from_the_beginning_what_was_asked_for_and_what_is_new_in_it(tmp_path: Path):
    store = Store(tmp_path)
    config = {"name": "toy", "num_seeds": 3, "stage1": {"peak_lr": 0.001}, "budgets": (16, 64)}
    began = {"artifacts": [], "given": "parcel run toy.yaml"}
    begin_run_record(store, config, "first", **began)
    record = run_records(store.files)["toy-first"]
    assert (record["state"], record["finished"], record["differs"]) == ("running", None, None)
    assert run_outcome(record) == "running"
    assert ended_run_records(store) == {}
    end_run_record(store, config, "first", results=None, artifacts=[], failed=[])
    stated = {"stage1": {"peak_lr": 0.002}}
    changed = {**config, **stated, "watch": None, "statements": stated}
    begin_run_record(store, changed, "second", **began, earlier=close_dead_records(store))
    record = run_records(store.files)["toy-second"]
    assert record["differs"] == {"stage1.peak_lr": [0.001, 0.002]}
    assert record["given"] == "parcel run toy.yaml"
    assert record["config"]["budgets"] == [16, 64]
    assert record["began"]
    assert (record["who"], record["tags"], record["note"]) == (getpass.getuser(), [], "")
    said = {"tags": ["night"], "note": "for the talk, password=hunter2"}
    begin_run_record(store, changed, "third", **began, **said)
    end_run_record(store, changed, "third", results=None, artifacts=[], failed=[])
    record = run_records(store.files)["toy-third"]
    assert record["tags"] == ["night"]
    assert record["note"].startswith("for the talk, ")
    assert "hunter2" not in record["note"]


def test_records_of_a_name_form_a_chain_from_what_each_promised(tmp_path: Path):
    store = Store(tmp_path)
    config = {"name": "toy", "num_seeds": 3}
    for run, name in (("first", "toy"), ("other", "another"), ("second", "toy")):
        named, promised = {**config, "name": name}, {"plan": {"seeds": [1, 2]}}
        earlier = close_dead_records(store)
        begin_run_record(
            store, named, run, artifacts=[], given="", promised=promised, earlier=earlier
        )
        end_run_record(store, named, run, results=None, artifacts=[], failed=[])
    records = run_records(store.files)
    assert records["toy-first"]["previous"] is None
    sha256 = beginning_sha256(records["toy-first"])
    assert records["toy-second"]["previous"] == {"run": "toy-first", "sha256": sha256}
    # A sweep promises more on its way; that another table came out changes nothing of the digest.
    wider = {"plan": {"seeds": [1, 2, 3]}}
    begin_run_record(store, config, "first", artifacts=[], given="", promised=wider)
    record = run_records(store.files)["toy-first"]
    assert [promise["plan"]["seeds"] for promise in record["promised"]] == [[1, 2], [1, 2, 3]]
    assert beginning_sha256(record) == sha256
    assert beginning_sha256({**record, "promised": record["promised"][1:]}) != sha256


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "complete"),
        ({"results": "results-0123456789abcdef-01234567"}, "complete"),
        ({"failed": ["a: no"]}, "failed"),
        ({"results": "results-0123456789abcdef-01234567", "failed": ["a: no"]}, "with holes"),
        ({"results": "results-0123456789abcdef-01234567", "holes": ["a"]}, "with holes"),
        ({"holes": ["a"]}, "with holes"),
    ],
)
def test_one_word_says_how_a_run_ended(tmp_path: Path, fields: dict[str, Any], expected: str):
    store = Store(tmp_path)
    assert end(store, "run", **fields) == expected
    (record,) = ended_run_records(store).values()
    assert run_outcome(record) == expected


def test_an_older_record_is_read(tmp_path: Path):
    old = {"name": "toy", "results": None, "artifacts": [], "finished": "2026-01-01T00:00:00+00:00",
           "failed": ["a: no"], "config": {}, "format": 1}  # fmt: skip
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "toy-unfinished-0123.json").write_text(json.dumps(old))
    (record,) = ended_run_records(Store(tmp_path)).values()
    assert (record["run"], run_outcome(record)) == ("toy-unfinished-0123", "failed")


def test_a_run_that_died_is_crashed_and_keeps_what_it_had_made(tmp_path: Path):
    # A process of its own, killed after it has committed an artifact and before its record says so.
    code = """
import os, signal, sys
from flows.lookup.runs import begin_run_record
from infra.store.manifest import Recipe
from infra.store.store import Attempt, Store
store = Store(sys.argv[1])
holding = store.pin_run("dead")
pin = holding.__enter__()
begin_run_record(store, {"name": "toy"}, "dead", artifacts=[], given="")
for name in ("stage1", "unrelated"):
    recipe = Recipe(kind="checkpoint", name=name)
    if name == "stage1":
        pin.add(recipe.key, "checkpoint-0123456789abcdef-01234567")
    attempt = Attempt(store, recipe)
    (attempt.path / "params").write_text(name)
    attempt.commit({})
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = tmp_path / "store"
    assert subprocess.run([sys.executable, "-c", code, str(root)]).returncode == -signal.SIGKILL
    store = Store(root)
    (record,) = run_records(store.files).values()
    assert run_outcome(record) == "running"
    # Even gc alone keeps what the run has made, however often it comes.
    for _ in range(2):
        deleted = gc.delete_garbage(store, older_than=0)
        assert "stage1" not in {item.title for item in deleted}
    assert [artifact.manifest.name for artifact in Store(root).artifacts()] == ["stage1"]
    closed = close_dead_records(Store(root))
    assert closed == ended_run_records(store)
    record = closed["toy-dead"]
    assert run_outcome(record) == "crashed"
    assert record["artifacts"] == store.keys()
    assert close_dead_records(store) == closed
    gc.delete_garbage(store, older_than=0)
    assert [artifact.manifest.name for artifact in Store(root).artifacts()] == ["stage1"]


def test_a_run_that_goes_on_is_not_crashed_and_one_that_was_cancelled_stays_so(tmp_path: Path):
    store = Store(tmp_path)
    for run_id in ("alive", "cancelled"):
        with store.pin_run(run_id):
            begin_run_record(store, {"name": "toy"}, run_id, artifacts=[], given="")
            assert run_outcome(close_dead_records(store)[f"toy-{run_id}"]) == "running"
            if run_id == "cancelled":
                stop_run_record(store, run_id, "cancelled")
            else:
                end(store, run_id)
    assert {run: run_outcome(record) for run, record in close_dead_records(store).items()} == {
        "toy-alive": "complete",
        "toy-cancelled": "cancelled",
    }


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"name": "toy"}', '{"format": 3}'])
def test_a_record_that_cannot_be_read_is_named_with_what_to_do(tmp_path: Path, text: str):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "toy-1.json").write_text(text)
    with pytest.raises(RecordError, match=r"runs/toy-1\.json "):
        find_run(Store(tmp_path), "toy")


def test_a_run_without_results_is_no_run_to_look_at_but_keeps_its_artifacts(tmp_path: Path):
    store = Store(tmp_path)
    key = "checkpoint-0123456789abcdef-01234567"
    end_run_record(store, {"name": "toy"}, "run", results=None, artifacts=[key], failed=[])
    (path,) = (tmp_path / "runs").glob("toy-*.json")
    assert key in path.read_text()
    with pytest.raises(ConfigError, match=r"RUN .*got 'toy'"):
        find_run(store, "toy")


def test_a_study_is_not_found_by_the_beginning_of_its_name_where_another_has_that_name(
    tmp_path: Path,
):
    store = Store(tmp_path)
    for name, code in (("demo", "00000001"), ("demo-2", "00000002")):
        results = f"results-0123456789abcdef-{code}"
        end_run_record(store, {"name": name}, "run", results=results, artifacts=[], failed=[])
    assert find_run(store, "demo")["name"] == "demo"
    assert find_run(store, "demo-")["name"] == "demo-2"


@pytest.mark.parametrize("path", [None, *CONFIGS], ids=lambda path: path.stem if path else "demo")
def test_a_study_is_read_again_from_its_record(path: Path | None, tmp_path: Path):
    store, config = Store(tmp_path), load(path)
    values = dataclasses.asdict(config)
    end_run_record(store, values, "run", results=None, artifacts=[], failed=[])
    assert study_of_form(config.name, store, []) == config
    deployed = pydantic.TypeAdapter(StudyConfig).dump_python(config, mode="json")
    assert check_config(deployed, source="deployed") == config


def test_a_run_that_begins_reads_each_record_once(gcs: GCS, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path))
    store = Store("gs://testing/store")
    for number in range(5):
        end(store, f"run-{number}")
    gcs.clear()
    with store.pin_run("new"):
        pinned = gcs.requests()["media"]["requests"]
        records = close_dead_records(store)
        begin_run_record(store, {"name": "toy"}, "new", artifacts=[], given="", earlier=records)
        # One for each of the five, one for the pin that shows who is alive, and one that finds the
        # record of the run itself absent.
        assert gcs.requests()["media"]["requests"] - pinned == 5 + 1 + 1
    assert run_records(store.files)["toy-new"]["differs"] == {}
