"""A tiny study of two backbones through the real command: one table, and steps shared with each."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import Finished, finish, parcel

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.usefixtures("one_server")]

CONFIG = Path(__file__).with_name("backbones.yaml")
SIGLIP, CLIP = "siglip2+gemma3", "clip+llama"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finish(tmp_path_factory.mktemp("backbones") / "store", str(CONFIG))


def results(finished: Finished, form: str, run: str = "two-backbones") -> str:
    done = parcel(finished.store, "results", run, "--format", form)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_table_has_both_backbones_each_with_its_reference(finished: Finished):
    rows = list(csv.DictReader(io.StringIO(results(finished, "csv"))))
    cells = {(r["benchmark"], r["method"], int(r["budget"])) for r in rows}
    assert cells == {
        (f"chartqa:{split}@{name}", method, budget)
        for split in ("test_human", "test_augmented")
        for name, full in ((SIGLIP, 64), (CLIP, 256))
        for method, budgets in (("vanilla", (full,)), ("parcel", (16, full)))
        for budget in budgets
    }
    assert {r["n"] for r in rows} == {"1"}
    # The cost of a prompt is by each model's own layers.
    costs = {
        r["backbone"]: r["tflops"] for r in rows if (r["method"], r["budget"]) == ("parcel", "16")
    }
    assert len({*costs.values()}) == 2
    report = json.loads(results(finished, "json"))
    assert {(b["backbone"], b["full_budget"]) for b in report["benchmarks"]} == {
        (SIGLIP, 64),
        (CLIP, 256),
    }
    assert {(a["backbone"], a["expected"]) for a in report["aggregates"]} == {
        (SIGLIP, 2),
        (CLIP, 2),
    }
    assert f"## Over benchmarks ({CLIP})" in finished.output
    (folder,) = finished.store.glob("artifacts/results-*/attempts/*")
    for plot in ("results.png", "pareto.png"):
        assert (folder / plot).stat().st_size > 10_000


def test_run_again_everything_is_reused(finished: Finished):
    done = parcel(finished.store, "run", str(CONFIG), "--explain")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^(\d+) steps: \1 reused$", done.stdout, re.MULTILINE)


def test_a_study_of_one_backbone_has_its_steps(finished: Finished, tmp_path: Path):
    # The second backbone as a study of its own would state it.
    values = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    model = values.pop("backbones")[CLIP]["model"]
    model["vision"]["family"], model["text"]["family"] = CLIP.split("+")
    values |= {"base": str(CONFIG.with_name("smallest.yaml")), "name": "alone", "model": model}
    values |= {
        "budgets": [16, 256],
        "train_budgets": {"m3": [16], "mqt": [16], "parcel": [16, 256]},
    }
    config = tmp_path / "alone.yaml"
    config.write_text(yaml.safe_dump(values), encoding="utf-8")
    done = parcel(finished.store, "run", str(config), "--explain")
    assert done.returncode == 0, done.stderr
    lines = [
        line for line in done.stdout.splitlines() if line.startswith(("reused", "new", "stale"))
    ]
    assert [line for line in lines if not line.startswith("reused")] == [
        line for line in lines if " results alone" in line
    ]
    assert any("stage1 vanilla" in line for line in lines)


def test_a_cell_is_traced_to_its_own_backbone(finished: Finished):
    cell = f"chartqa:test_human@{CLIP}/parcel/16"
    done = parcel(finished.store, "lineage", "trace", "two-backbones", "--cell", cell)
    assert done.returncode == 0, done.stderr
    assert f"stage1 vanilla@{CLIP}" in done.stdout
    assert SIGLIP not in done.stdout
