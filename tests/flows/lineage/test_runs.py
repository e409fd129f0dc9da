"""Records of runs: kept apart by their results, and without credentials."""

import dataclasses
import json
from pathlib import Path

import pydantic
import pytest

from flows.config.load import check_config, load
from flows.config.study import StudyConfig
from flows.lineage.runs import ended_run_records, find_run, write_run_record
from flows.study.form_values import study_of_form
from infra.errors import ConfigError
from infra.store.records import RecordError
from infra.store.redact import redact
from infra.store.store import Store

CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))


def test_record_holds_no_credential(tmp_path: Path):
    store = Store(tmp_path)
    options = ["--runner=DataflowRunner", "--password", "x7Kq"]
    config = {"name": "toy", "prepare": {"runner_options": options}}
    failed = ["prepare web: https://me:x7Kq@host/ is not there"]
    write_run_record(
        store,
        config,
        "results-0123456789abcdef-01234567",
        artifacts=[],
        flow_run_id="f",
        failed=failed,
    )
    (path,) = (tmp_path / "runs").glob("*.json")
    assert "x7Kq" not in path.read_text()
    assert json.loads(path.read_text())["config"]["prepare"]["runner_options"][0] == options[0]


@pytest.mark.parametrize("path", [None, *CONFIGS], ids=lambda path: path.stem if path else "demo")
def test_nothing_of_a_shipped_config_looks_like_a_credential(path: Path | None):
    config = dataclasses.asdict(load(path))
    assert redact(config) == config


def test_results_of_the_same_code_have_records_of_their_own(tmp_path: Path):
    store = Store(tmp_path)
    for identity in ("0123456789abcdef", "f123456789abcdef"):
        write_run_record(
            store,
            {"name": "toy"},
            f"results-{identity}-01234567",
            artifacts=[],
            flow_run_id="f",
            failed=[],
        )
    assert len(list((tmp_path / "runs").glob("*.json"))) == 2
    assert find_run(store, "toy-f123")["results"] == "results-f123456789abcdef-01234567"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"name": "toy"}', '{"format": 2}'])
def test_a_record_that_cannot_be_read_is_named_with_what_to_do(tmp_path: Path, text: str):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "toy-1.json").write_text(text)
    with pytest.raises(RecordError, match=r"runs/toy-1\.json cannot be read: .*; restore it, or"):
        find_run(Store(tmp_path), "toy")


def test_a_run_without_results_is_no_run_to_look_at_but_keeps_its_artifacts(tmp_path: Path):
    store = Store(tmp_path)
    key = "checkpoint-0123456789abcdef-01234567"
    write_run_record(store, {"name": "toy"}, None, artifacts=[key], flow_run_id="f", failed=[])
    (path,) = (tmp_path / "runs").glob("toy-unfinished-*.json")
    assert key in path.read_text()
    with pytest.raises(ConfigError, match="RUN must name a finished run, got 'toy'"):
        find_run(store, "toy")


def test_what_one_unfinished_run_made_stays_on_record_after_another(tmp_path: Path):
    store = Store(tmp_path)
    keys = ["checkpoint-0123456789abcdef-01234567", "dataset-0123456789abcdef-01234567"]
    for made in ([keys[0]], [keys[1]], [keys[1]]):
        write_run_record(store, {"name": "toy"}, None, artifacts=made, flow_run_id="f", failed=[])
    assert sorted(record["artifacts"] for record in ended_run_records(store).values()) == [
        [k] for k in keys
    ]


def test_a_study_is_not_found_by_the_beginning_of_its_name_where_another_has_that_name(
    tmp_path: Path,
):
    store = Store(tmp_path)
    for name, code in (("demo", "00000001"), ("demo-2", "00000002")):
        results = f"results-0123456789abcdef-{code}"
        write_run_record(store, {"name": name}, results, artifacts=[], flow_run_id="f", failed=[])
    assert find_run(store, "demo")["name"] == "demo"
    assert find_run(store, "demo-")["name"] == "demo-2"


@pytest.mark.parametrize("path", [None, *CONFIGS], ids=lambda path: path.stem if path else "demo")
def test_a_study_is_read_again_from_its_record(path: Path | None, tmp_path: Path):
    store, config = Store(tmp_path), load(path)
    values = dataclasses.asdict(config)
    write_run_record(store, values, None, artifacts=[], flow_run_id="f", failed=[])
    assert study_of_form(config.name, store, []) == config
    deployed = pydantic.TypeAdapter(StudyConfig).dump_python(config, mode="json")
    assert check_config(deployed, source="deployed") == config
