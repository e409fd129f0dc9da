"""Certificates of a small study: honest ones hold, and each kind of forgery is found."""

import base64
import copy
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.lineage.certificate.envelope import (
    make_key,
    open_envelope,
    public_line,
    read_key,
    write_envelope,
)
from flows.lineage.certificate.statement import certify_run, pack, registration_of, unpack
from flows.lineage.certificate.verify import Verdict, verify_certificate
from flows.steps.registry import code_digest
from infra.errors import ConfigError
from infra.store.digest import file_sha256, listing_sha256
from infra.store.manifest import File
from infra.store.store import Store, manifest_name
from model.eval.metrics import registry
from tests.flows.lineage.certified import PLAN, STEPS, TEST, TRAIN, record_of, write_study

Predicate = dict[str, Any]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of one run; tests that change it copy it."""
    store = Store(tmp_path_factory.mktemp("honest"))
    write_study(store)
    return store


@pytest.fixture
def copied(honest: Store, tmp_path: Path) -> Store:
    shutil.copytree(honest.state, tmp_path / "copy")
    return Store(tmp_path / "copy")


@pytest.fixture(scope="module")
def statement(honest: Store) -> dict[str, Any]:
    return certify_run(honest, "honest")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    make_key(tmp_path / "key.pem")
    return tmp_path / "key.pem"


def verdict(statement: dict[str, Any], key: Path, store: Store | None = None) -> Verdict:
    """What a verifier is told, who has the author's key."""
    path = key.with_name("certificate.json")
    path.unlink(missing_ok=True)
    write_envelope(statement, read_key(key), path)
    return verify_certificate(path, public_key=public_line(read_key(key)), store=store)


def states(of: Verdict) -> list[str]:
    return [level.state for level in of.levels]


def failed(of: Verdict) -> tuple[str, str]:
    assert of.failure is not None
    return of.failure.name, of.failure.detail


def test_an_honest_table_is_signed_consistent_and_traced(
    honest: Store, statement: dict[str, Any], key: Path
):
    assert states(verdict(statement, key)) == ["passed", "passed", "not checked", "not checked"]
    traced = verdict(statement, key, honest)
    assert states(traced) == ["passed", "passed", "passed", "not checked"]
    assert "none of 7 test items" in traced.levels[2].detail


def test_the_file_says_what_nothing_of_it_proves(statement: dict[str, Any], key: Path):
    lines = [*verdict(statement, key).lines()]
    (proved,) = (number for number, line in enumerate(lines) if line.startswith("Not proved"))
    (table,) = (number for number, line in enumerate(lines) if line.startswith("level "))
    assert proved < table
    assert any("honest-first" in line for line in lines[:proved])


def test_without_items_the_scores_are_not_checked_and_it_is_said(honest: Store, key: Path):
    bare = verdict(certify_run(honest, "honest", items=False), key)
    assert states(bare)[:2] == ["passed", "not checked"]
    assert "no items" in bare.levels[1].detail


def cell_of(predicate: Predicate, role: str = "colors/parcel/64/23") -> dict[str, Any]:
    return predicate["manifests"][predicate["results_manifest"]["inputs"][role]["key"]]


def edit_answer(predicate: Predicate) -> None:
    key, text = next(iter(predicate["items"]["answers"].items()))
    texts = json.loads(unpack(text))
    texts[texts.index("purple")] = "red"
    predicate["items"]["answers"][key] = pack(json.dumps(texts).encode())


def edit_reference(predicate: Predicate) -> None:
    key, text = next(iter(predicate["items"]["splits"].items()))
    rows = json.loads(unpack(text))
    rows[0]["fields"]["answers"] = ["purple"]
    predicate["items"]["splits"][key] = pack(json.dumps(rows).encode())


def edit_score(predicate: Predicate) -> None:
    cell_of(predicate)["counts"]["score"] += 5


def edit_mean(predicate: Predicate) -> None:
    predicate["table"]["benchmarks"][0]["cells"][-1]["mean"] += 1
    with_new_digest(predicate)


def edit_interval(predicate: Predicate) -> None:
    predicate["table"]["benchmarks"][0]["cells"][-1]["low"] += 1
    with_new_digest(predicate)


def edit_comparison(predicate: Predicate) -> None:
    predicate["table"]["benchmarks"][0]["comparisons"][0]["holm"] = 0.001
    with_new_digest(predicate)


def leave_out_comparisons(predicate: Predicate) -> None:
    results = predicate["results_manifest"]  # A later version's table may have more fields.
    results["code"] = code_digest("results", results["config"])
    del predicate["table"]["benchmarks"][0]["comparisons"]
    with_new_digest(predicate)


def take_back_a_seed(predicate: Predicate) -> None:
    """Has a run promise another seed first, as if a sweep had added those of the table."""
    first = copy.deepcopy(predicate["runs"][0]["promised"][0])
    first["plan"]["seeds"] = [5, *first["plan"]["seeds"]]
    predicate["runs"][0]["promised"].insert(0, first)
    predicate["preRegistration"] = registration_of(predicate["runs"][0])


def other_registration(predicate: Predicate) -> None:
    predicate["preRegistration"]["value"] = "5" * 64


def other_harness(predicate: Predicate) -> None:
    predicate["harness"]["version"] = "9.9"


def with_new_digest(predicate: Predicate) -> None:
    """States the digest of an edited table, so that the edit alone can be seen."""
    import hashlib

    text = json.dumps(predicate["table"], indent=1, ensure_ascii=False) + "\n"
    file = predicate["manifests"][predicate["results"]]["files"]["results.json"]
    file["sha256"] = hashlib.sha256(text.encode()).hexdigest()


def edit_config(predicate: Predicate) -> None:
    predicate["manifests"][trained_with(predicate)]["config"]["train"]["peak_lr"] = 0.5


def more_updates(predicate: Predicate) -> None:
    predicate["manifests"][trained_with(predicate)]["counts"]["steps"] = STEPS + 20


def other_weights(predicate: Predicate) -> None:
    predicate["manifests"][trained_with(predicate)]["content"] = "5" * 64


def trained_with(predicate: Predicate) -> str:
    answered = predicate["manifests"][cell_of(predicate)["inputs"]["predictions"]["key"]]
    return answered["inputs"]["checkpoint"]["key"]


def other_name(predicate: Predicate) -> None:
    predicate["suite"]["name"] = "better"


@pytest.mark.parametrize(
    ("forge", "text"),
    [
        (edit_answer, "predictions.jsonl: bytes differ"),
        (edit_reference, "predictions.jsonl: bytes differ"),
        (edit_score, "its answers score"),
        (edit_mean, "mean is"),
        (edit_interval, "low is"),
        (edit_comparison, "holm is"),
        (edit_config, "are not those of its key"),
        (more_updates, f"{STEPS + 20} updates, its config has {STEPS}"),
        (other_weights, "input checkpoint"),
        (other_name, "is not that of this table"),
        (leave_out_comparisons, "the table leaves it out"),
        (take_back_a_seed, "seeds 5 were promised first"),
        (other_registration, "preRegistration is not"),
        (other_harness, "harness is not"),
    ],
)
def test_what_the_author_edits_before_signing_is_not_consistent(
    statement: dict[str, Any], key: Path, forge: Callable[[Predicate], None], text: str
):
    forged = copy.deepcopy(statement)
    predicate = forged["predicate"]
    predicate["results_manifest"] = predicate["manifests"][predicate["results"]]
    forge(predicate)
    files = predicate["results_manifest"]["files"]
    forged["subject"] = [{"name": n, "digest": {"sha256": files[n]["sha256"]}} for n in files]
    name, detail = failed(verdict(forged, key))
    assert name == "consistent"
    assert text in detail


def test_a_changed_byte_and_another_key_are_not_signed(
    statement: dict[str, Any], key: Path, tmp_path: Path
):
    path = tmp_path / "certificate.json"
    write_envelope(statement, read_key(key), path)
    envelope = json.loads(path.read_text())
    payload = base64.b64decode(envelope["payload"]).replace(b"honest", b"better")
    path.write_text(json.dumps({**envelope, "payload": base64.b64encode(payload).decode()}))
    assert failed(verify_certificate(path))[0] == "signed"
    other = make_key(tmp_path / "other.pem")
    path.write_text(json.dumps(envelope))
    assert open_envelope(path)[2] == ""
    name, detail = failed(verify_certificate(path, public_key=other))
    assert (name, other in detail) == ("signed", True)


@pytest.mark.parametrize(
    ("study", "text"),
    [
        # A seed is dropped, or another one stands in its place, after the promise.
        ({"plan": dataclasses.replace(PLAN, seeds=(11, 47)), "promised": PLAN}, "plan.seeds"),
        ({"plan": dataclasses.replace(PLAN, seeds=(11, 23, 5)), "promised": PLAN}, "plan.seeds"),
        ({"split": "val"}, "colors.split is 'test' and 'val'"),
        ({"metric": "vqa_lower"}, "colors.metric is 'exact_match' and 'vqa_lower'"),
        ({"steps": STEPS + 20}, f"{STEPS + 20} updates"),
    ],
)
def test_a_table_that_is_not_what_its_run_promised_is_not_consistent(
    tmp_path: Path, key: Path, study: dict[str, Any], text: str
):
    store = Store(tmp_path / "store")
    write_study(store, **study)
    name, detail = failed(verdict(certify_run(store, "honest"), key, store))
    assert (name, text in detail) == ("consistent", True), detail


def test_a_metric_whose_code_was_changed_is_not_consistent(
    tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch
):
    store = Store(tmp_path / "store")
    with monkeypatch.context() as patch:
        lenient = registry.Metric(score=lambda prediction, fields: 1.0)
        patch.setitem(registry.METRICS, "exact_match", lenient)
        write_study(store)
    name, detail = failed(verdict(certify_run(store, "honest"), key))
    assert (name, "and 100.0000 is stated" in detail) == ("consistent", True)


def test_a_second_attempt_shows_and_cannot_be_left_out(copied: Store, key: Path):
    better = dataclasses.replace(PLAN, seeds=(5, 7, 8))
    write_study(copied, "second", plan=better)
    statement = certify_run(copied, "honest")
    seen = verdict(statement, key, copied)
    assert seen.failure is None
    assert [run["run"] for run in seen.predicate["runs"]] == ["honest-first", "honest-second"]
    statement["predicate"]["runs"].pop(0)
    name, detail = failed(verdict(statement, key))
    assert (name, "honest-first of this name is left out" in detail) == ("consistent", True)
    # Without the link to it, what the second run's record said is another thing in the store.
    (second,) = statement["predicate"]["runs"]
    second["previous"] = None
    statement["predicate"]["preRegistration"] = registration_of(second)
    assert failed(verdict(statement, key, copied))[0] == "traced"


def test_an_old_table_under_a_new_name_is_not_consistent(copied: Store, key: Path):
    write_study(copied, "new", name="renamed")
    path, record = record_of(copied, "renamed-new")
    old = record_of(copied, "honest-first")[1]["results"]
    path.write_text(json.dumps({**record, "results": old, "began": "2099-01-01T00:00:00+00:00"}))
    name, detail = failed(verdict(certify_run(copied, "renamed"), key))
    assert (name, "it is of an older study" in detail) == ("consistent", True)


def test_swapped_weights_are_not_traced(copied: Store, statement: dict[str, Any], key: Path):
    weights = next(copied.state.glob("artifacts/checkpoint-*/attempts/*/params"))
    weights.chmod(0o644)
    weights.write_text("better")
    seen = verdict(statement, key, copied)
    assert states(seen) == ["passed", "passed", "failed", "not checked"]
    assert "params: bytes differ" in failed(seen)[1]


def test_a_test_item_in_the_training_data_is_not_traced(tmp_path: Path, key: Path):
    store = Store(tmp_path / "store")
    leaked = dataclasses.replace(TEST[2], id="color/900")
    write_study(store, train=[*TRAIN, leaked])
    name, detail = failed(verdict(certify_run(store, "honest"), key, store))
    assert (name, f"trains on {TEST[2].id}" in detail) == ("traced", True), detail


def test_a_promise_that_was_written_anew_is_not_traced(
    copied: Store, statement: dict[str, Any], key: Path
):
    path, record = record_of(copied, "honest-first")
    record["promised"][0]["plan"]["seeds"] = [1, 2, 3]
    path.write_text(json.dumps(record))
    name, detail = failed(verdict(statement, key, copied))
    assert (name, "promised something else in the store" in detail) == ("traced", True)


def test_a_config_that_was_changed_after_its_promise_is_not_traced(tmp_path: Path, key: Path):
    store = Store(tmp_path / "store")
    leaked = dataclasses.replace(TEST[2], id="color/900")
    write_study(store, train=[*TRAIN, leaked])
    path, record = record_of(store, "honest-first")
    record["config"]["transfers"] = {"colors": {"allow_train_on_eval": True}}
    path.write_text(json.dumps(record))
    name, detail = failed(verdict(certify_run(store, "honest"), key, store))
    assert (name, "is not the one that it promised" in detail) == ("traced", True), detail


def test_a_table_without_answers_is_computed_from_the_scores_of_the_store(copied: Store, key: Path):
    bare = certify_run(copied, "honest", items=False)
    assert states(verdict(bare, key, copied))[1:3] == ["not checked", "passed"]
    results = copied.get(bare["predicate"]["results"])
    table = results.path / "results.json"
    report = json.loads(table.read_text())
    report["benchmarks"][0]["cells"][0]["mean"] = 99.0
    table.chmod(0o644)
    table.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    file = File(sha256=file_sha256(table), size=table.stat().st_size)
    files = {**results.manifest.files, "results.json": file}
    content = listing_sha256({name: each.sha256 for name, each in files.items()})
    forged = dataclasses.replace(results.manifest, files=files, content=content)
    manifest = copied.state / manifest_name(results.key)
    manifest.unlink()
    manifest.write_text(forged.to_json())
    edited = certify_run(Store(copied.state), "honest", items=False)
    name, detail = failed(verdict(edited, key, Store(copied.state)))
    assert (name, "mean is 99.0" in detail) == ("traced", True), detail


def test_references_that_are_not_those_of_the_data_are_not_traced(
    copied: Store, statement: dict[str, Any], key: Path
):
    # Of a field that only a metric may read, so that no file of answers holds it.
    forged = copy.deepcopy(statement)
    splits = forged["predicate"]["items"]["splits"]
    for data, text in splits.items():
        rows = json.loads(unpack(text))
        rows[0]["fields"]["lang"] = "other"
        splits[data] = pack(json.dumps(rows).encode())
    name, detail = failed(verdict(forged, key, copied))
    assert (name, "fields.lang is 'other'" in detail) == ("traced", True), detail


def test_items_of_more_bytes_than_any_are_refused(monkeypatch: pytest.MonkeyPatch):
    assert unpack(pack(b" " * 900)) == b" " * 900
    monkeypatch.setattr("flows.lineage.certificate.statement._MAX_BYTES", 899)
    with pytest.raises(ValueError, match="more than 899 bytes"):
        unpack(pack(b" " * 900))


def test_what_a_stranger_wrote_is_no_command_to_a_terminal(statement: dict[str, Any], key: Path):
    forged = copy.deepcopy(statement)
    forged["predicate"]["suite"]["name"] = "\x1b[2J"
    assert "\x1b" not in "".join(verdict(forged, key).lines())


def test_a_run_that_is_not_among_those_listed_is_a_fault_and_no_error(
    honest: Store, statement: dict[str, Any], key: Path
):
    forged = copy.deepcopy(statement)
    forged["predicate"]["suite"]["version"] = "nobody"
    assert states(verdict(forged, key, honest))[1:3] == ["failed", "failed"]


@pytest.mark.parametrize("content", ["", "{}", '{"payload": "e30=", "signatures": []}', "[1]"])
def test_what_is_no_certificate_is_refused_in_one_line(tmp_path: Path, content: str):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="FILE must be a certificate") as refused:
        verify_certificate(path)
    assert "\n" not in str(refused.value)


def test_keys_are_the_owners_alone_and_never_written_over(tmp_path: Path):
    path = tmp_path / "key.pem"
    line = make_key(path)
    assert (path.stat().st_mode & 0o777, public_line(read_key(path))) == (0o600, line)
    with pytest.raises(ConfigError, match="must be a new file"):
        make_key(path)
    (tmp_path / "none.pem").write_text("no key")
    with pytest.raises(ConfigError, match="must be an Ed25519 key"):
        read_key(tmp_path / "none.pem")
