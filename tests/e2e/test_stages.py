"""The paper's stages through the real command: two resolutions, and starts at every stage."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from infra.store.store import Artifact, Store
from model.checkpoint.digest import flatten_params
from model.checkpoint.folder import load_config, load_params
from model.files import WATCH
from tests.e2e.conftest import Finished, finish, parcel

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.usefixtures("one_server")]

CONFIG = str(Path(__file__).with_name("stages.yaml"))
LAB = str(Path(__file__).with_name("lab.yaml"))


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finish(tmp_path_factory.mktemp("stages") / "store", CONFIG)


def checkpoint(finished: Finished, name: str) -> Artifact:
    found = Store(finished.store).artifacts("checkpoint")
    return next(artifact for artifact in found if artifact.manifest.name == name)


def parameters(finished: Finished, name: str) -> dict[str, np.ndarray]:
    return dict(flatten_params(load_params(checkpoint(finished, name).path)))


def table(store: Path, run: str) -> list[dict[str, str]]:
    done = parcel(store, "results", run, "--format", "csv")
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


def test_one_table_has_both_resolutions(staged: Finished):
    rows = {
        (r["benchmark"], r["method"], int(r["budget"])): r for r in table(staged.store, "stages")
    }
    low, high = "chartqa", "chartqa@64"
    assert set(rows) == {
        (low, "vanilla", 64),
        (low, "parcel", 16),
        (low, "parcel", 64),
        (high, "vanilla", 256),
        (high, "parcel", 64),
        (high, "parcel", 256),
    }
    assert {r["n"] for key, r in rows.items() if key[0] == low} == {"2"}
    assert {r["n"] for key, r in rows.items() if key[0] == high} == {"1"}
    assert {(key[0], r["resolution"]) for key, r in rows.items()} == {(low, "32"), (high, "64")}
    tokens = {key[1:]: r["tokens"] for key, r in rows.items() if key[0] == high}
    assert tokens["parcel", 64] == "64"
    assert "chartqa (relaxed_accuracy, 64 px)" in staged.output


def test_stage_2_extends_the_bank_and_resizes_the_positions(staged: Finished):
    before, after = parameters(staged, "intermediary parcel"), parameters(staged, "stage2 parcel")
    assert load_config(checkpoint(staged, "stage2 parcel").path).vision.image_px == 64
    assert before["vision/positions"].shape[0] == 64
    assert after["vision/positions"].shape[0] == 256
    rows = len(before["connector/queries"])
    assert rows == 64 - 16
    assert len(after["connector/queries"]) == 256 - 64  # More than 62 tokens with 16 anchors ask.
    # Two updates of at most 1e-5 from where the intermediary left them, not anew.
    kept = np.abs(after["connector/queries"][:rows] - before["connector/queries"]).max()
    apart = np.abs(after["connector/queries"][rows : 2 * rows] - before["connector/queries"]).max()
    assert kept < 1e-4 < 1e-2 < apart


def test_a_cell_of_the_higher_resolution_is_traced_to_its_pixels(staged: Finished):
    done = parcel(staged.store, "lineage", "trace", "stages", "--cell", "chartqa@64/parcel/64")
    assert done.returncode == 0, done.stderr
    for name in (
        "stage2 parcel",
        "intermediary parcel",
        "stage1 vanilla",
        "transfer parcel chartqa@64",
        "prepare mixture/web@64",
        "prepare chartqa@64/eval",
    ):
        assert name in done.stdout, name


def test_without_stage_2_everything_below_it_is_the_same_and_reused(staged: Finished):
    done = parcel(staged.store, "run", CONFIG, "name=lower", "stage2=null")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ": 1 made, " in done.stdout  # The table.
    assert {row["resolution"] for row in table(staged.store, "lower")} == {""}


def test_a_study_begins_from_checkpoints_with_connectors(staged: Finished):
    starts = {
        method: str(checkpoint(staged, f"intermediary {method}").path)
        for method in ("vanilla", "parcel")
    }
    words = [f"start={json.dumps(starts)}", f"tokenizer.path={starts['parcel']}/tokenizer.model"]
    done = parcel(
        staged.store, "run", CONFIG, "name=begun", "stage1=null", "intermediary=null", *words
    )
    assert done.returncode == 0, done.stdout + done.stderr
    scores = {
        run: [
            (r["benchmark"], r["method"], r["budget"], r["scores"])
            for r in table(staged.store, run)
        ]
        for run in ("stages", "begun")
    }
    assert scores["begun"] == scores["stages"]
    assert "reused" in done.stdout
    made = {a.manifest.name for a in Store(staged.store).artifacts("start")}
    assert {"start vanilla", "start parcel"} <= made


@pytest.mark.night
def test_published_weights_are_converted_and_begin_at_the_intermediary(
    staged: Finished, tmp_path: Path
):
    stage1 = checkpoint(staged, "stage1 vanilla")
    weights = tmp_path / "weights"
    done = parcel(staged.store, "model", "convert", str(stage1.path), str(weights))
    assert done.returncode == 0, done.stderr
    words = [f"start={weights}", f"tokenizer.path={stage1.path}/tokenizer.model"]
    done = parcel(staged.store, "run", LAB, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    (start,) = [a for a in Store(staged.store).artifacts("start") if a.manifest.name == "start"]
    assert start.manifest.content == stage1.manifest.content
    assert {(r["method"], r["budget"]) for r in table(staged.store, "lab")} == {
        ("vanilla", "64"),
        ("parcel", "16"),
        ("parcel", "64"),
    }
    read = {
        tuple(sorted((role, i.content) for role, i in a.manifest.inputs.items() if role == "init"))
        for a in Store(staged.store).artifacts("checkpoint")
        if a.manifest.name.startswith("intermediary ")
    }
    assert read == {(("init", stage1.manifest.content),)}
    paths = [
        a.path / WATCH
        for a in Store(staged.store).artifacts("checkpoint")
        if a.manifest.name == "intermediary parcel" and (a.path / WATCH).exists()
    ]
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    assert len(paths) == 1
    assert {r["step"] for r in rows} == {3, 4}
    assert {(r["task"], r["budget"]) for r in rows} == {
        (task, budget) for task in ("vqa", "probe") for budget in (16, 64)
    }
    assert all(0 < r["loss"] < 20 for r in rows if r["task"] == "vqa")
    assert all(r["num"] == 4 for r in rows if r["task"] == "probe")
