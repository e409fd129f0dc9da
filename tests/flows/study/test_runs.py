"""Records of runs: kept apart by their results, and without credentials."""

import json
from pathlib import Path

from flows.study.runs import find_run, note_run
from infra.store.store import Store


def test_record_holds_no_credential(tmp_path: Path):
    store = Store(tmp_path)
    options = ["--runner=DataflowRunner", "--password", "x7Kq"]
    config = {"name": "toy", "prepare": {"runner_options": options}}
    failed = ["prepare web: https://me:x7Kq@host/ is not there"]
    note_run(store, config, "results-0123456789abcdef-01234567", flow_run_id="f", failed=failed)
    (path,) = (tmp_path / "runs").glob("*.json")
    assert "x7Kq" not in path.read_text()
    assert json.loads(path.read_text())["config"]["prepare"]["runner_options"][0] == options[0]


def test_results_of_the_same_code_have_records_of_their_own(tmp_path: Path):
    store = Store(tmp_path)
    for identity in ("0123456789abcdef", "f123456789abcdef"):
        note_run(store, {"name": "toy"}, f"results-{identity}-01234567", flow_run_id="f", failed=[])
    assert len(list((tmp_path / "runs").glob("*.json"))) == 2
    assert find_run(store, "toy-f123")["results"] == "results-f123456789abcdef-01234567"
