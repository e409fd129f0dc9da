"""`parcel release` of a study's checkpoint: its card, its data, its errors, and its own example."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from flows.lineage.certificate.envelope import make_key
from flows.lineage.training_order import batch_config, data_of_training
from infra.store.store import Store
from model.data.loader import samples_of_step
from model.seeds import Seeds
from tests.e2e.conftest import PARCEL, Finished, environment, parcel
from tests.gcs.objects import Content
from tests.gcs.server import GCS
from tests.torch_python import run_torch, torch_python

pytestmark = pytest.mark.e2e

CELL = "tiny/chartqa:test_human/parcel/16"


@pytest.fixture(scope="module")
def seed(finished: Finished) -> str:
    refused = parcel(finished.store, "release", CELL, "--out", str(finished.store / "none"))
    assert refused.returncode == 2
    found = re.search(rf"name one: {CELL}/(\d+),", refused.stderr)
    assert found, refused.stderr
    return found[1]


@pytest.fixture(scope="module")
def released(finished: Finished, seed: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("released") / "parcel-chartqa"
    make_key(out.with_name("key.pem"))
    key = "--key", str(out.with_name("key.pem"))
    words = f"{CELL}/{seed}", "--out", str(out), "--license", "gemma", *key
    done = parcel(finished.store, "release", *words)
    assert done.returncode == 0, done.stderr
    return out


def _checkpoint(store: Store, seed: str) -> str:
    (key,) = {
        artifact.manifest.inputs["checkpoint"].key
        for artifact in store.artifacts("predictions")
        if artifact.manifest.name == f"evaluate parcel chartqa:test_human seed={seed} budget=16"
    }
    return key


def test_the_certificate_beside_the_weights_holds_as_the_card_says(released: Path):
    command = re.search(
        r"parcel (verify \S+ --public-key \S+)", (released / "README.md").read_text()
    )
    assert command
    done = parcel(released / "none", *command[1].split(), cwd=released)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "consistent  passed" in done.stdout


def test_the_card_says_what_the_records_say(finished: Finished, seed: str, released: Path):
    store = Store(finished.store)
    key = _checkpoint(store, seed)
    text = (released / "README.md").read_text()
    metadata = yaml.safe_load(text.split("---\n")[1])
    assert (metadata["license"], metadata["library_name"]) == ("gemma", "transformers")
    (index,) = metadata["model-index"]
    told = {
        (result["dataset"]["type"], metric["args"]["budget"]): (metric["type"], metric["value"])
        for result in index["results"]
        for metric in result["metrics"]
    }
    scored = [
        a
        for a in store.artifacts("scores")
        for predictions in [store.get_cached(a.manifest.inputs["predictions"].key)]
        if predictions.manifest.inputs["checkpoint"].key == key
    ]
    assert set(told) == {
        (f"chartqa:{s}", b) for s in ("test_human", "test_augmented") for b in (16, 256)
    }
    assert len(scored) == len(told)
    for artifact in scored:
        said = json.loads((artifact.path / "score.json").read_text())
        row = artifact.manifest.name.split()[2], artifact.manifest.config["budget"]
        assert told[row] == (said["metric"], round(said["score"], 4))
    for stage in ("transfer parcel chartqa", "intermediary parcel", "stage1 vanilla"):
        assert f"### {stage}" in text
    assert f"parcel lineage replay {key}" in text
    assert "No training data was screened" in text
    assert "| prepare mixture/web | 91 | 2 |" in text


def test_what_it_saw_is_a_count_over_the_order(finished: Finished, seed: str, released: Path):
    done = parcel(finished.store, "lineage", "summary", f"{CELL}/{seed}", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = [training["name"] for training in found["trainings"]]
    assert [name.split(" ")[0] for name in names] == ["stage1", "intermediary", "transfer"]
    store, all_ids = Store(finished.store), set[tuple[str, str]]()
    for training in found["trainings"]:
        manifest = store.get(training["key"]).manifest
        keys = data_of_training(manifest)
        places = [store.get(key).uri for key in keys]
        config, seeds = batch_config(manifest), Seeds.of(manifest.seed or 0)
        ids = [
            sample
            for step in range(int(manifest.counts["steps"]))
            for sample, *_ in samples_of_step(places, config, seeds, step)
        ]
        assert sum(row["examples"] for row in training["seen"]) == len(ids)
        assert sum(row["records"] for row in training["seen"]) == len(set(ids))
        all_ids |= {(" ".join(keys), sample) for sample in ids}
    assert sum(row["records"] for row in found["seen"]) == len(all_ids)
    section = (released / "README.md").read_text().split("## Licences of the data\n")[1]
    for row in found["seen"]:
        assert f"| {row['source']} | none stated |" in section.split("\n## ")[0]


def test_its_data_are_described(released: Path):
    described = [json.loads(file.read_text()) for file in (released / "croissant").iterdir()]
    names = {one["name"] for one in described}
    assert {
        "prepare chartqa/train",
        "prepare mixture/web",
        "prepare chartqa:test_human/eval",
    } <= names


def test_wrong_requests_are_one_line_and_leave_nothing(
    finished: Finished, seed: str, released: Path, tmp_path: Path
):
    before = {file.name: file.read_bytes() for file in released.iterdir() if file.is_file()}
    for name, out, said in (
        (f"{CELL}/{seed}", released, "--out must not exist yet"),
        ("tiny", tmp_path / "a", "must be a cell of a table or a checkpoint, got tiny: results"),
        (f"{CELL}/{seed}", tmp_path / "no" / "a", "--out must lie in an existing folder"),
    ):
        done = parcel(finished.store, "release", name, "--out", str(out))
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert said in done.stderr
    assert {f.name: f.read_bytes() for f in released.iterdir() if f.is_file()} == before
    assert not any(tmp_path.iterdir())


def test_a_folder_has_no_lineage_and_the_card_says_so(
    finished: Finished, seed: str, tmp_path: Path
):
    store = Store(finished.store)
    shutil.copytree(store.get(_checkpoint(store, seed)).path, tmp_path / "copy")
    words = str(tmp_path / "copy"), "--out", str(tmp_path / "out")
    assert parcel(finished.store, "release", *words).returncode == 0
    text = (tmp_path / "out" / "README.md").read_text()
    assert "not on record" in text
    assert "No licence was stated" in text
    assert "model-index" not in text


@pytest.mark.deep
def test_from_a_bucket_it_is_the_same(
    finished: Finished, seed: str, released: Path, tmp_path: Path
):
    uri = "gs://testing/studies"
    with GCS() as gcs:
        gcs.bucket("testing")
        for part in ("manifests", "artifacts", "runs", "sources"):
            gcs.upload(finished.store / part, f"studies/{part}")
        written = Content.of((finished.store / "store.json").read_bytes())
        gcs.store.put("testing", "studies/store.json", written)
        own = {"PARCEL_STORE": uri, "PARCEL_STATE": str(tmp_path / "state")}
        done = subprocess.run(
            [PARCEL, "release", f"{CELL}/{seed}", "--out", "parcel-chartqa", "--license", "gemma"],
            env=environment(tmp_path) | gcs.environment | own,
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
    assert done.returncode == 0, done.stderr
    found = files_in(tmp_path / "parcel-chartqa")
    # The data's addresses are those of the store.
    assert any(uri.encode() in content for content in found.values())
    at_home = str(finished.store).encode()
    found = {name: content.replace(uri.encode(), at_home) for name, content in found.items()}
    assert found == files_in(released)


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_the_cards_example_answers_as_predict_does(
    finished: Finished, seed: str, released: Path, tmp_path: Path
):
    torch_python()
    copy = shutil.copytree(released, tmp_path / "copy")
    pixels = np.random.default_rng(2).integers(0, 256, (97, 130, 3), np.uint8)
    Image.fromarray(pixels).save(copy / "image.png")
    (block,) = re.findall(r"```python\n(.*?)```", (copy / "README.md").read_text(), re.DOTALL)
    (budget,) = re.findall(r"budget=(\d+)", block)
    (copy / "example.py").write_text(block)
    answer = run_torch(copy, "example.py")
    key = _checkpoint(Store(finished.store), seed)
    words = str(copy / "image.png"), "--prompt", "caption en", "--budget", budget
    said = parcel(finished.store, "model", "predict", key, *words)
    assert said.returncode == 0, said.stderr
    assert answer == said.stdout
