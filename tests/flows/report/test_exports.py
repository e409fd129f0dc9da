"""What goes out of a study for other programs: nothing is lost, and the formats are theirs."""

import dataclasses
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyarrow import parquet

import parcel as notebook
from flows.logs.item_log import ItemLog, ItemLogError
from flows.logs.logs_report import read_logs, report_logs
from flows.lookup.results import report_of, write_results
from flows.lookup.runs import results_artifact
from flows.report.cells import CellKey, Report
from flows.report.items_table import items_schema
from infra.store.store import Store
from tests.flows.conftest import Done
from tests.flows.report.exported_study import (
    METRICS,
    NUM_ITEMS,
    PLAN,
    budgets_of,
    write_exported_study,
)

Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Rows]:
    """The store of the study `sent`, and the items that were written; nobody writes to it."""
    store = Store(tmp_path_factory.mktemp("sent"))
    return store, write_exported_study(store)


@pytest.fixture(scope="module")
def evaluations(sent: tuple[Store, Rows], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study in the format of Every Eval Ever."""
    out = tmp_path_factory.mktemp("eee")
    (line,) = write_results(sent[0], "sent", "eee", out, organization="lab")
    assert line == f"evaluations with their items: 10 in {out}"
    return out


@pytest.fixture(scope="module")
def logs(evaluations: Path) -> list[ItemLog]:
    """The same, read back."""
    return read_logs([evaluations])


def test_a_table_of_items_has_every_item_of_every_score(sent: tuple[Store, Rows], tmp_path: Path):
    store, rows_of = sent
    (line,) = write_results(store, "sent", "items", tmp_path / "a.parquet")
    assert line == f"items: {4 * NUM_ITEMS + 6 * 40:,} in {tmp_path / 'a.parquet'}"
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.schema.equals(items_schema())
    read: Rows = {}
    for row in table.to_pylist():
        place = {name: row.pop(name) for name in ("benchmark", "method", "budget", "seed")}
        read.setdefault(str(CellKey(**place)), []).append(row)
    assert [*read] == [
        str(CellKey(benchmark=b, method=m, budget=budget, seed=seed))
        for b in PLAN.benchmarks
        for m in PLAN.methods
        for budget in budgets_of(b, m)
        for seed in PLAN.seeds
    ]
    for cell, rows in read.items():
        benchmark, seed = cell.split("/")[0], int(cell.split("/")[-1])
        assert {row.pop("metric") for row in rows} == {METRICS[benchmark]}
        assert {row.pop("pretraining") for row in rows} == {PLAN.pretraining_of[seed]}
        for name in ("scores", "predictions", "checkpoint", "data"):
            (key,) = {row.pop(name) for row in rows}
            artifact = store.get(key)
            if name in ("scores", "data"):
                assert {row.pop(f"{name}_sha256") for row in rows} == {artifact.manifest.content}
        assert [row | {"prefix": row["prompt"]} for row in rows] == [
            {"pseudo_value": None, "prompt": row["prefix"], **row} for row in rows_of[cell]
        ]
    write_results(store, "sent", "items", tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"a.parquet", "b.parquet"}


def test_a_notebooks_items_are_rows_of_that_table(sent: tuple[Store, Rows], tmp_path: Path):
    store, _ = sent
    write_results(store, "sent", "items", tmp_path / "a.parquet")
    whole = parquet.read_table(tmp_path / "a.parquet").to_pandas()
    cell = whole.query("benchmark == 'nocaps' and method == 'parcel' and budget == 16")
    frame = notebook.items("sent/nocaps/parcel/16", store=store.uri).to_pandas()
    assert frame.to_json() == cell.reset_index(drop=True).to_json()


def test_evaluations_come_back_without_loss(sent: tuple[Store, Rows], logs: list[ItemLog]):
    _, rows_of = sent
    assert len(logs) == len(rows_of)
    for log in logs:
        cell = CellKey(
            benchmark=log.task, method=_method(log.model), budget=log.budget, seed=log.seed
        )
        assert log.metric == METRICS[log.task]
        assert (log.split, log.pretraining) == ("val", PLAN.pretraining_of[log.seed])
        read = [(i.id, i.source, i.prompt, i.target, i.answer, i.score) for i in log.items]
        assert read == [
            (
                row["id"],
                row["source_sha256"],
                row["prefix"] or "",
                _target(row["answers"] or []),
                row["prediction"],
                row.get("pseudo_value", row["score"]),
            )
            for row in rows_of[str(cell)]
        ]


def test_seeds_that_are_one_checkpoint_are_refused(logs: list[ItemLog], tmp_path: Path):
    for log in logs:
        samples = Path(log.file)
        name = samples.name.removesuffix("_samples.jsonl")
        evaluation = json.loads(samples.with_name(f"{name}.json").read_text())
        evaluation["model_info"]["additional_details"]["checkpoint_sha256"] = "e" * 64
        (tmp_path / f"{name}.json").write_text(json.dumps(evaluation))
        (tmp_path / samples.name).write_bytes(samples.read_bytes())
    with pytest.raises(ItemLogError, match=r"seed must be .* checkpoint is the same, eeee"):
        report_logs(read_logs([tmp_path]))


def _target(answers: list[str]) -> str:
    if len(answers) < 2:
        return "".join(answers)
    return json.dumps(answers, ensure_ascii=False)


def test_their_report_has_our_scores_intervals_and_pairs(
    sent: tuple[Store, Rows], logs: list[ItemLog]
):
    store, _ = sent
    ours, _ = report_of(store, results_artifact(store, "sent"), mixed=False)
    theirs = report_logs(logs)
    assert _cells(theirs) == pytest.approx(_cells(ours), rel=1e-9)
    assert len(_cells(ours)) == 4 * (2 + 3)
    assert _pairs(theirs) == pytest.approx(_pairs(ours), rel=1e-6)
    assert len(_pairs(ours)) == 6 * (2 + 1)


def _cells(report: Report) -> dict[tuple[str, ...], float | None]:
    """Returns the numbers of each cell that has scores."""
    return {
        (cell.benchmark, _method(cell.method), str(cell.budget), name): getattr(cell, name)
        for section in report.sections
        for cell in section.cells
        for name in ("mean", "low", "high", "pretrainings")
        if cell.n
    }


def _pairs(report: Report) -> dict[tuple[str, ...], float | None]:
    """Returns the numbers of the differences parcel - vanilla, on each benchmark and over both.

    Models of logs come in the order of their files.
    """
    numbers: dict[tuple[str, ...], float | None] = {}
    for pair in (*(c for s in report.sections for c in s.comparisons), *report.comparisons):
        if pair.other_budget is not None:  # The reference, which is the first model, differs.
            continue
        assert pair.low is not None
        assert pair.high is not None
        assert {_method(pair.method), _method(pair.other)} == {"parcel", "vanilla"}
        turned = _method(pair.method) == "vanilla"
        place = " ".join(sorted(pair.benchmarks))
        numbers |= {
            (place, "mean"): -pair.mean if turned else pair.mean,
            (place, "low"): -pair.high if turned else pair.low,
            (place, "high"): -pair.low if turned else pair.high,
            (place, "p"): pair.p,
            (place, "seeds"): pair.seeds,
            (place, "items"): pair.items,
        }
    return numbers


def _method(model: str) -> str:
    return model.removeprefix("lab/sent-")


# Of eval.schema.json and instance_level_eval.schema.json, 0.3.0: dotted field -> type.
OF_EVALUATION = {
    "schema_version": str, "evaluation_id": str, "retrieved_timestamp": str,
    "source_metadata.source_type": str, "source_metadata.source_organization_name": str,
    "source_metadata.evaluator_relationship": str, "eval_library.name": str,
    "eval_library.version": str, "model_info.name": str, "model_info.id": str,
    "model_info.additional_details.deployment_type": str,
    "model_info.additional_details.model_availability": str, "evaluation_results": list,
    "detailed_evaluation_results.format": str, "detailed_evaluation_results.file_path": str,
}  # fmt: skip
OF_RESULT = {
    "evaluation_name": str, "source_data.dataset_name": str, "source_data.source_type": str,
    "metric_config.lower_is_better": bool, "metric_config.score_type": str,
    "score_details.score": float, "generation_config.generation_args": dict,
}  # fmt: skip
OF_SAMPLE = {
    "schema_version": str, "evaluation_id": str, "model_id": str, "evaluation_name": str,
    "sample_id": str, "interaction_type": str, "input.raw": str, "input.reference": list,
    "output.raw": list, "answer_attribution": list, "evaluation.score": float,
    "evaluation.is_correct": bool, "metadata": dict,
}  # fmt: skip
SAMPLES = re.compile(
    r"data/[^/]+/[^/]+/[^/]+/[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    r"_samples\.jsonl"
)


def test_evaluations_have_what_the_schema_asks_for(evaluations: Path):
    files = {path.relative_to(evaluations).as_posix() for path in evaluations.rglob("*.json*")}
    seen = set()
    for name in sorted(name for name in files if name.endswith(".json")):
        evaluation = json.loads((evaluations / name).read_text())
        _check(evaluation, OF_EVALUATION)
        assert evaluation["schema_version"] == "0.3.0"
        (result,) = evaluation["evaluation_results"]
        _check(result, OF_RESULT)
        # All values of these objects must be texts.
        for details in (
            evaluation["model_info"],
            result["source_data"],
            result["generation_config"],
        ):
            assert all(isinstance(text, str) for text in details["additional_details"].values())
        largest = result["metric_config"]["max_score"]
        assert largest == ("Infinity" if "nocaps" in name else 1.0)
        interval = result["score_details"]["uncertainty"]["confidence_interval"]
        assert interval["lower"] < result["score_details"]["score"] < interval["upper"]
        listed = evaluation["detailed_evaluation_results"]
        samples = listed["file_path"]
        assert SAMPLES.fullmatch(samples)
        assert samples == name.replace(".json", "_samples.jsonl")
        text = (evaluations / samples).read_bytes()
        assert listed["checksum"] == hashlib.sha256(text).hexdigest()
        # Their validator splits lines as Python splits texts, at more than \n.
        rows = [json.loads(line) for line in text.decode().splitlines()]
        assert len(rows) == listed["total_rows"]
        for row in rows:
            _check(row, OF_SAMPLE)
            assert row["evaluation_id"] == evaluation["evaluation_id"]
            assert row["model_id"] == evaluation["model_info"]["id"]
            assert row["interaction_type"] == "single_turn"
            assert all(isinstance(text, str) for text in row["metadata"].values())
        seen |= {name, samples}
    assert seen == files


def _check(value: dict[str, Any], fields: dict[str, type]) -> None:
    for path, kind in fields.items():
        found: Any = value
        for part in path.split("."):
            found = found[part]
        assert type(found) is kind, path


@pytest.mark.skipif(
    shutil.which("every_eval_ever") is None,
    reason="needs every_eval_ever of PyPI on PATH, which needs Python 3.12",
)
def test_their_validator_passes(evaluations: Path):
    files = [str(path.relative_to(evaluations)) for path in evaluations.rglob("*.json*")]
    done = subprocess.run(
        ["every_eval_ever", "validate", "--format", "json", *files],
        cwd=evaluations,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reports = json.loads(done.stdout)
    assert len(reports) == 2 * 10
    assert all(one["valid"] and not one["errors"] and not one["warnings"] for one in reports)


def test_the_hub_gets_what_it_has_a_dataset_for(sent: tuple[Store, Rows], tmp_path: Path):
    store, _ = sent
    page = "https://huggingface.co/lab/sent"
    lines = write_results(store, "sent", "hub", tmp_path / "hub", source=page)
    assert lines[0] == f"methods with results for the Hub: 2 in {tmp_path / 'hub'}"
    # Only 40 of its items were taken.
    assert lines[1].endswith(": nocaps")
    report, _ = report_of(store, results_artifact(store, "sent"), mixed=False)
    for method in PLAN.methods:
        (file,) = (tmp_path / "hub" / method).rglob("*.yaml")
        assert file.relative_to(tmp_path / "hub" / method).parent.name == ".eval_results"
        entries = yaml.safe_load(file.read_text())
        cells = [c for c in report.sections[0].cells if c.method == method and c.n]
        assert [entry["value"] for entry in entries] == [
            pytest.approx(cell.mean, abs=1e-4) for cell in cells
        ]
        for entry, cell in zip(entries, cells, strict=True):
            assert entry["dataset"] == {"id": "lmms-lab/OK-VQA", "task_id": "default"}
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", entry["date"])
            assert entry["source"]["url"] == page
            assert entry["notes"].startswith(f"{cell.budget} soft tokens per image; vqa; 95 %")
            assert "mean of 2 seeds; 5000 items" in entry["notes"]


def test_the_hub_gets_scores_by_either_of_a_benchmarks_rules(sent: tuple[Store, Rows]):
    from flows.report.hub_results import _hub_task

    store, _ = sent
    data = next(iter(store.artifacts("dataset"))).manifest
    data = dataclasses.replace(data, config={"reader": "gqa", "split": "testdev_balanced"})
    found = [_hub_task(data, metric) for metric in ("vqa", "gqa_llava", "vqa_lower")]
    assert found == [("lmms-lab/GQA", "testdev_balanced_instructions")] * 2 + [None]


def test_wrong_requests_are_one_line(parcel: Callable[..., Done], toy: Store, tmp_path: Path):
    (tmp_path / "there").write_text("mine")
    (tmp_path / "full").mkdir()
    write_results(toy, "toy", "eee", tmp_path / "eee")
    (tmp_path / "full" / "a").write_text("mine")
    out = ("--out", tmp_path / "x")
    asked = {
        ("toy", "--format", "items"): "--format items needs RUN, a study's name, and --out PATH",
        ("--format", "eee", *out): "--format eee needs RUN",
        ("no", "--format", "items", *out): "RUN must name a finished run",
        ("toy", "--format", "items", "--out", tmp_path / "there"): "--out must be a new file",
        ("toy", "--format", "items", "--out", tmp_path / "full"): "--out must be a new file",
        ("toy", "--format", "eee", "--out", tmp_path / "full"): "a new or empty folder",
        ("toy", "--format", "items", "--out", tmp_path / "a" / "b"): "No such file or directory",
        ("toy", "--format", "eee", "--organization", "a/b", *out): "--organization must be",
        ("toy", "--format", "eee", "--organization", "data", *out): "no reserved name",
        ("toy", "--format", "hub", "--source", "my page", *out): "--source must be a page",
        ("toy", "--format", "hub", "--organization", "lab", *out): "needs --format eee",
        ("toy", "--source", "https://a.b"): "--source needs --format hub, got --format md",
        ("toy", "--format", "hub", "--labels", "a.yaml", *out): "--labels needs a format that",
        ("--predictions", tmp_path, "--source", "https://a.b"): "goes with RUN alone, got --source",
        (
            "toy",
            "--predictions",
            tmp_path / "eee",
        ): "is of `parcel results`, with budgets and seeds",
    }
    for words, said in asked.items():
        done = parcel("results", *words, "--store", toy.uri)
        assert (done.code, done.err.count("\n")) == (2, 1), (words, done.err)
        assert said in done.err
    assert {path.name for path in tmp_path.iterdir()} == {"there", "full", "eee"}
