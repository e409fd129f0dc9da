"""A budget chosen per input, from the config to the judgement, on top of a study that ran."""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest

from infra.store.store import Store
from tests.e2e.conftest import CONFIG, Finished, parcel

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("one_server")]

OVERRIDES = (
    "name=auto",
    "methods=[parcel]",
    "budgets=[16,256,auto]",
    "num_seeds=1",
    "transfers.chartqa.eval_splits=[test_human]",
    "transfers.msvd_qa.transfer=false",
)


def test_auto_is_a_budget_like_others(finished: Finished, tmp_path: Path):
    store = Store(shutil.copytree(finished.store, tmp_path / "store"))
    before = store.keys("tokenizer")
    done = parcel(tmp_path / "store", "run", CONFIG, *OVERRIDES)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "## Budgets chosen per input" in done.stdout
    assert re.search(r"@auto \d+\.\d at \d+ tokens", done.stdout)
    assert "router loss" in done.stdout
    assert store.keys("tokenizer") == before  # Nothing before the transfers is made again.
    (routed,) = store.artifacts("routed")
    assert {entry.split("/")[0] for entry in routed.manifest.inputs} == {
        "checkpoint",
        "router",
        "data",
        "answers",
    }
    needs = [json.loads(line) for line in (routed.path / "needs.jsonl").open()]
    assert {row["budget"] for row in needs} <= {16, 256}
    results = next(a for a in store.artifacts("results") if (a.path / "auto.csv").exists())
    (row,) = csv.DictReader((results.path / "auto.csv").open())
    mean = sum(row["budget"] for row in needs) / len(needs)
    assert float(row["tokens"]) == pytest.approx(mean, abs=1e-3)
    assert float(row["score"]) == pytest.approx(routed.manifest.counts["score"], abs=1e-3)
    told = parcel(tmp_path / "store", "results", "auto", "--format", "auto")
    assert told.stdout == (results.path / "auto.csv").read_text()
    none = parcel(tmp_path / "store", "results", "tiny", "--format", "auto")
    assert none.returncode == 2
    assert "--format auto needs a run with auto among its budgets, got tiny" in none.stderr
    assert (results.path / "auto.png").read_bytes().startswith(b"\x89PNG")
