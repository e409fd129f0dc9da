"""The study through the real command: table, reuse, lineage, errors."""

import contextlib
import csv
import io
import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from flows.lookup.runs import find_run
from infra.store.store import Store
from model.eval.items_file import ItemsFile
from pipelines.records.dataset import Dataset
from tests.e2e.conftest import CONFIG, Finished, parcel, run_all

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("one_server")]

METHODS = ("vanilla", "m3", "mqt", "parcel")
ROWS = ("chartqa:test_human", "chartqa:test_augmented")
"""One benchmark is fine-tuned on, and scored on each of its rows."""


READ = {
    "table": ["results", "tiny", "--format", "csv"],
    "json": ["results", "tiny", "--format", "json"],
    "scores": ["results", "tiny", "--format", "cells"],
    "comparisons": ["results", "tiny", "--format", "comparisons"],
    "trace": ["lineage", "trace", "tiny", "--cell", f"{ROWS[0]}/parcel/16"],
    "diff": ["lineage", "diff", f"tiny/{ROWS[0]}/parcel/16", f"tiny/{ROWS[0]}/mqt/16"],
    "same": ["lineage", "diff", f"tiny/{ROWS[0]}/parcel/16", f"tiny/{ROWS[0]}/parcel/16"],
}
"""Commands that only read the finished study."""


@pytest.fixture(scope="module")
def outputs(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each command of READ prints, and as "sample" the trace of a record of the web's."""
    words = {**READ, "sample": ["lineage", "trace", "tiny", "--sample", web_sample(finished)]}
    done = run_all([*words.values()], finished.store, tmp_path_factory.mktemp("read"))
    for each in done:
        assert each.returncode == 0, each
    return {name: each.stdout for name, each in zip(words, done, strict=True)}


def web_sample(finished: Finished) -> str:
    """Returns the id of the first record of the mixture's web part."""
    datasets = Store(finished.store).artifacts("dataset")
    (web,) = [each for each in datasets if each.manifest.name == "prepare mixture/web"]
    return next(Dataset(web.uri).records()).id


def cells(text: str) -> dict[tuple[str, str, int], dict[str, str]]:
    rows = csv.DictReader(io.StringIO(text))
    return {(r["benchmark"], r["method"], int(r["budget"])): r for r in rows}


def test_every_planned_cell_has_all_its_seeds(outputs: dict[str, str]):
    table = cells(outputs["table"])
    elastic = {(row, m, b) for row in ROWS for m in METHODS[1:] for b in (16, 256)}
    assert set(table) == elastic | {(row, "vanilla", 256) for row in ROWS}
    for row in table.values():
        assert (row["n"], row["expected"]) == ("2", "2")
        assert 0 <= float(row["mean"]) <= 100
    assert float(table[ROWS[0], "vanilla", 256]["chance"]) > 0


def test_markdown_json_and_plot_tell_the_same_study(finished: Finished, outputs: dict[str, str]):
    results = json.loads(outputs["json"])
    store = Store(finished.store)
    keys = {k for s in json.dumps(results).split('"') for k in [s] if k.startswith("scores-")}
    assert len(keys) == len(ROWS) * 2 * (1 + 3 * 2)
    checkpoints = [a.manifest.name for a in store.artifacts() if a.manifest.kind == "checkpoint"]
    assert sum(name.startswith("transfer ") for name in checkpoints) == 4 * 2
    for key in keys:
        assert store.find(key) is not None
    artifact = next(a for a in store.artifacts() if a.manifest.kind == "results")
    assert (artifact.path / "results.png").read_bytes().startswith(b"\x89PNG")
    assert "chartqa" in finished.output


def test_items_are_the_score_and_predictions_name_their_pixels(finished: Finished):
    store = Store(finished.store)
    for artifact in store.artifacts("scores"):
        predictions = store.get(artifact.manifest.inputs["predictions"].key)
        rows = [json.loads(x) for x in (predictions.path / "predictions.jsonl").open()]
        assert all(len(row["source_sha256"]) == 64 and row["source"] for row in rows)
        score = json.loads((artifact.path / "score.json").read_text())
        ids, texts, scores = ItemsFile(artifact.path).columns("id", "prediction", "score")
        assert [*zip(ids, texts, strict=True)] == [(r["id"], r["prediction"]) for r in rows]
        assert score["num"] == len(rows) > 0
        assert score["score"] == pytest.approx(100 * sum(scores) / len(scores))
        assert {*predictions.manifest.files} == {"predictions.jsonl"}
        assert {*artifact.manifest.files} == {"items.parquet", "score.json"}


def test_the_runs_log_reads_as_a_story(finished: Finished):
    with contextlib.closing(sqlite3.connect(finished.store / "prefect/prefect.db")) as database:
        rows = database.execute(
            "SELECT flow_run_id, message FROM log ORDER BY timestamp"
        ).fetchall()
    of_prefect = ("Beginning flow run", "View at", "Finished in state")
    first = [m for run, m in rows if run == rows[0][0] and not m.startswith(of_prefect)]
    assert "none of them there; to make: corpus 1" in first[0]
    assert "; the table is results-" in first[-1]
    begun = next(
        i for i, line in enumerate(first) if line.startswith("stage1 vanilla begins, with")
    )
    made = next(i for i, line in enumerate(first) if line.startswith("stage1 vanilla: made in "))
    assert begun < made
    assert len(set(first)) == len(first)  # Nothing is told twice.


def test_trace_of_a_cell_reaches_the_source_samples(finished: Finished, outputs: dict[str, str]):
    trace = outputs["trace"]
    for seed in find_run(Store(finished.store), "tiny")["config"]["transfers"]:
        assert seed in trace
    for step in ("score parcel chartqa:test_human seed=",
                 "evaluate parcel chartqa:test_human seed=", "transfer parcel chartqa seed=",
                 "intermediary parcel", "stage1 vanilla", "prepare mixture/web",
                 "prepare chartqa/train", "tokenizer", "corpus"):  # fmt: skip
        assert step in trace, step
    assert "← chartqa/ChartQA Dataset/test/png/" in trace
    assert "sha256:" in trace
    assert trace.count("evaluate parcel chartqa:test_human") == 2


def test_a_sample_leads_up_to_the_steps_that_saw_it_and_to_the_cells(
    finished: Finished, outputs: dict[str, str]
):
    trace = outputs["sample"]
    assert f"{web_sample(finished)} is record 0 of " in trace
    cells = len(ROWS) * 2 * (1 + 3 * 2)
    assert f"{cells} of {cells} cells are with its words in the tokenizer" in trace
    seen = "seen by stage1 vanilla" in trace
    assert seen == (f"{cells} of {cells} cells are trained on it" in trace)


def test_cells_of_two_methods_differ_in_what_made_them(outputs: dict[str, str]):
    assert "config    model.connector.kind parcel → mqt" in outputs["diff"]
    assert "stage1" not in outputs["diff"]
    end = "the same contents\nnothing differs in how they were made\n"
    assert outputs["same"].endswith(end)


@pytest.mark.parametrize(
    "words", [[], pytest.param(["--from", "raw"], marks=pytest.mark.deep)], ids=["inputs", "raw"]
)
def test_a_cell_is_made_again_to_the_byte(finished: Finished, words: list[str]):
    (transfer, *_) = [
        artifact.manifest.name
        for artifact in Store(finished.store).artifacts("checkpoint")
        if artifact.manifest.name.startswith("transfer parcel chartqa seed=")
    ]
    seed = transfer.partition("seed=")[2]
    cell = f"tiny/{ROWS[0]}/parcel/16/{seed}"
    done = parcel(finished.store, "lineage", "replay", cell, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert all(": the same " in line for line in lines), done.stdout
    answered, scored = lines[-2:]
    assert answered.startswith("evaluate parcel chartqa")
    assert ": the same bytes, 1 files" in answered
    assert scored.startswith("score parcel chartqa")
    assert ": the same bytes, 2 files" in scored
    assert len(lines) > 5 if words else len(lines) == 2


def test_every_manifest_tells_what_design_asks(finished: Finished):
    for artifact in Store(finished.store).artifacts():
        manifest = artifact.manifest
        assert set(manifest.environment) >= {"git", "packages", "hardware", "prefect"}
        assert manifest.environment["prefect"]["flow_run_id"]
        assert manifest.files, manifest.name
        assert manifest.attempts, manifest.name
        assert manifest.kind in ("corpus", "files") or manifest.inputs, manifest.name


def test_verify_finds_a_changed_byte(finished: Finished, tmp_path: Path):

    copy = tmp_path / "store"
    shutil.copytree(finished.store, copy)
    assert parcel(copy, "lineage", "verify").returncode == 0
    shards = copy.glob("artifacts/dataset-*/attempts/*/*.tfrecord")
    victim = max(shards, key=lambda path: path.stat().st_size)  # Some are empty.
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(bytes(data))
    done = parcel(copy, "lineage", "verify")
    assert done.returncode == 1
    assert f"{victim.name}: bytes differ from the manifest" in done.stderr


WRONG = (
    (["run", "num_seed=2"], "num_seed: no such key; did you mean num_seeds?"),
    (["run", "methods=[vanilla,parcl]"], "methods.1 must be one of vanilla"),
    (["run", "transfers.chartqb={}"], "no benchmark 'chartqb'"),
    (["run", "stage1.warmup=3"], "warmup"),
    (["run", "no/such.yaml"], "no/such.yaml"),
    (["results", "nobody"], "RUN must name a finished run, got 'nobody'"),
    (["results", "tiny", "--format", "xml"], "--format must be one of"),
    (["lineage", "trace", "tiny", "--cell", "chartqa/parcel/17"], f"{ROWS[1]}/parcel/16"),
    (["lineage", "show", "nothing-1"], "nothing-1"),
    (["--store"], ""),
)


def test_wrong_requests_get_one_line_and_exit_code_2(finished: Finished, tmp_path: Path):
    done = run_all([words for words, _ in WRONG], finished.store, tmp_path)
    for ended, (_, message) in zip(done, WRONG, strict=True):
        assert ended.returncode == 2, ended
        assert message in ended.stderr
        assert ended.stderr.count("\n") == 1, ended


@pytest.mark.deep
def test_a_study_may_start_from_a_checkpoint(finished: Finished, tmp_path: Path):
    store = Store(shutil.copytree(finished.store, tmp_path / "store"))
    first = next(a for a in store.artifacts() if a.manifest.name == "stage1 vanilla")
    pieces = tmp_path / "pieces.model"
    pieces.write_bytes((first.path / "tokenizer.model").read_bytes())
    done = parcel(
        tmp_path / "store", "train", CONFIG, "name=started", f"start={first.path}",
        f"tokenizer.path={pieces}", "methods=[vanilla]", "budgets=[256]", "stage1.total_steps=1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    second = [
        a.manifest
        for a in store.artifacts()
        if a.manifest.name == "stage1 vanilla" and "init" in a.manifest.inputs
    ]
    assert [m.inputs["init"].content for m in second] == [first.manifest.content]
    given = store.get(second[0].inputs["init"].key).manifest.inputs["given"]
    assert "params.json" in (store.get(given.key).path / "files.txt").read_text()


def test_every_score_has_its_artifacts_and_its_machine(finished: Finished, outputs: dict[str, str]):
    rows = [*csv.DictReader(io.StringIO(outputs["scores"]))]
    assert len(rows) == len(ROWS) * 2 * (1 + 3 * 2)
    store = Store(finished.store)
    for row in rows:
        predictions = store.get(row["predictions"])
        (scored,) = (
            a
            for a in store.artifacts("scores")
            if a.manifest.inputs["predictions"].key == predictions.key
        )
        score = json.loads((scored.path / "score.json").read_text())
        assert float(row["score"]) == pytest.approx(score["score"], abs=1e-4)
        assert int(row["items"]) == score["num"]
        assert float(row["low"]) <= float(row["score"]) <= float(row["high"])
        checkpoint = store.get(row["checkpoint"]).manifest
        assert predictions.manifest.inputs["checkpoint"].key == row["checkpoint"]
        assert checkpoint.name.endswith(f" seed={row['seed']}")
        assert row["connector"] == row["method"]
        assert row["accelerator"] == "cpu"
    results = next(a for a in store.artifacts() if a.manifest.kind == "results")
    assert outputs["comparisons"] == (results.path / "comparisons.csv").read_text()
