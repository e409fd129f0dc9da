"""A difference without a verdict reads the same in tables, files and on pages, with the reason."""

import csv
import hashlib
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flows.pages.compare_page import common_cells, compare_cells, find_sides
from flows.pages.run_results import study_of
from flows.report.compare import NOISY_SEEDS
from flows.report.json_file import read_json, to_json
from infra.store.store import Store
from pipelines.records.schema import Record
from tests.flows.pages import studies
from tests.flows.pages.test_compare import COMPARE, client_of
from tests.flows.pages.test_pages import get, told

BENCHMARKS = ("colors", "forms", "sizes", "noisy")
ANSWERS_OF = studies.answers_of
RNG = random.Random(0)


def answers_of(records: Sequence[Record], every: int, seed: int) -> list[dict[str, Any]]:
    """A picture for each answer, half of them right; all wrong with one seed of a benchmark."""
    rows = ANSWERS_OF(records, every, seed)
    failed = (records[0].task, every, seed) == ("noisy", studies.RIGHT["parcel"], 23)
    for row in rows:
        row["source_sha256"] = hashlib.sha256(row["id"].encode()).hexdigest()
        row["score"] = 0.0 if failed else float(RNG.random() < 0.5)
    return rows


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    found = Store(tmp_path_factory.mktemp("store"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "answers_of", answers_of)
        studies.write_study(
            found, benchmarks=BENCHMARKS, methods=("vanilla", "parcel"), num_items=120
        )
    return found


def test_only_the_noisy_training_has_no_verdict_and_its_budgets_have_one(store: Store):
    """Two budgets share a training's noise, which says nothing of their difference."""
    sections = study_of(store, "toy").report.sections
    assert {s.benchmark for s in sections for c in s.comparisons if c.reason} == {"noisy"}
    for entry in sections[-1].comparisons:
        is_noisy = "parcel" in (entry.method, entry.other) and entry.method != entry.other
        assert entry.reason == NOISY_SEEDS * is_noisy
        values = (entry.low, entry.high, entry.p, entry.holm, entry.detectable)
        assert all((value is None) == is_noisy for value in values)
        assert not (is_noisy and entry.stands)
        assert (entry.items, entry.seeds) == (120, 3)


def test_table_latex_files_and_pages_say_the_same(parcel, store: Store, tmp_path: Path):
    labels = tmp_path / "labels.yaml"
    labels.write_text("methods: {parcel: Ours}\nbenchmarks: {noisy: Loud}\nbaseline: vanilla\n")
    words = ("results", "toy", "--store", store.uri)
    note = f"No verdict where {NOISY_SEEDS}"
    entry = next(c for c in study_of(store, "toy").section("noisy").comparisons if c.reason)
    table = parcel(*words).out
    assert f"{note}: noisy.\n" in table
    assert f" | {entry.mean:+.1f} [no verdict] | " in table
    latex = parcel(*words, "--format", "latex", "--labels", labels).out
    assert f"{note}: Loud." in latex
    assert rf"${entry.mean:+.1f}_{{\text{{[no verdict]}}}}$" in latex
    lines = csv.DictReader(io.StringIO(parcel(*words, "--format", "comparisons").out))
    found = {
        (line["benchmarks"], line["low"] == "", line["holm"] == "", line["reason"])
        for line in lines
        if " " not in line["benchmarks"]
    }
    assert {line for line in found if line[3] or line[1]} == {("noisy", True, True, NOISY_SEEDS)}
    text = parcel(*words, "--format", "json").out
    assert to_json(read_json(text)) == text
    (noisy,) = [s for s in json.loads(text)["benchmarks"] if s["benchmark"] == "noisy"]
    assert next(c["reason"] for c in noisy["comparisons"] if "reason" in c) == NOISY_SEEDS


def test_the_page_of_two_cells_shows_their_difference_and_the_reason(store: Store):
    run = study_of(store, "toy").run
    names = [f"{run}/noisy/{method}/64" for method in ("vanilla", "parcel")]
    first, second = find_sides(store, names)
    (key,) = common_cells(first, second)
    for pair in (
        compare_cells(store, first, second, key),
        compare_cells(store, second, first, key),
    ):
        assert pair.difference is not None
        assert (pair.difference.low, pair.difference.reason) == (None, NOISY_SEEDS)
    text = told(get(client_of(store), f"{COMPARE}?side={names[0]}&side={names[1]}"))
    assert f"no verdict: {NOISY_SEEDS}" in text
