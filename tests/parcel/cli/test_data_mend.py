"""A dataset of a store, mended: what a run would make, and most of it taken over."""

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from flows.graph.datasets import raw_files_spec, raw_folders
from flows.steps.kind import Step
from flows.steps.kinds.dataset import DatasetSpec
from flows.steps.labels import Labels
from infra.errors import ConfigError
from infra.store.raw_fingerprint import RawFingerprint
from infra.store.store import Artifact, Store
from parcel.cli.data_mend import _find_or_make
from parcel.cli.main import app
from pipelines.prepare.config import PrepareConfig
from tests.gcs.server import GCS

PREPARE = PrepareConfig(image_px=16, num_shards=6, num_workers=1, max_reject_rate=0.5)


@pytest.fixture
def corpus(tmp_path, encoded) -> Path:
    """Returns a data root: rows and pictures of one's own, two of them torn."""
    folder = tmp_path / "data/own"
    folder.mkdir(parents=True)
    rows = [{"image": f"{i}.png", "prefix": "p", "suffix": str(i)} for i in range(12)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for i in range(12):
        picture = encoded(20, 20, "PNG", seed=i)
        (folder / f"{i}.png").write_bytes(picture[:99] if i in (2, 9) else picture)
    return tmp_path / "data"


@pytest.fixture
def encoded(tmp_path):
    """Returns a function: width, height, format -> encoded noise."""

    def make(width: int, height: int, kind: str, seed: int) -> bytes:
        noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noise).save(buffer, kind)
        return buffer.getvalue()

    return make


@pytest.fixture(params=["disk", "bucket"])
def store(request, tmp_path, monkeypatch) -> str:
    if request.param == "disk":
        return str(tmp_path / "store")
    server = request.getfixturevalue("gcs")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path / "state"))
    return "gs://testing/store"


@pytest.fixture
def gcs():
    with GCS() as server:
        server.bucket("testing")
        yield server


def prepared(store: Store, corpus: Path) -> Artifact:
    spec = DatasetSpec(reader="jsonl", path="own", split="train", prepare=PREPARE)
    files = Step(
        kind="raw_files",
        labels=Labels(action="files", subject="own"),
        config=raw_files_spec(spec, RawFingerprint(str(corpus)).sha256(raw_folders(spec))),
        location=str(corpus),
    )
    dataset = Step(
        kind="dataset",
        labels=Labels(action="prepare", subject="own"),
        config=spec,
        inputs={"raw": files},
        location=str(corpus),
    )
    with store.pin_run("test") as pin:
        return _find_or_make(store, dataset, {"raw": _find_or_make(store, files, {}, pin)}, pin)


def mend(*words: object) -> list[str]:
    done = CliRunner().invoke(app, ["data", "mend", *map(str, words)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0
    return done.stdout.splitlines()


@pytest.mark.slow
def test_repaired_files_make_another_dataset_that_shares_what_stayed(
    store: str, corpus: Path, encoded, tmp_path
):
    opened = Store(store)
    before = prepared(opened, corpus)
    asked = [before.key[:20], "--data-root", corpus, "--store", store]
    told = mend(*asked)
    assert "raw files have not changed" in told[1]
    assert [line.split()[0] for line in told[2:]] == ["rejected"] * 2
    (corpus / "own/9.png").write_bytes(encoded(20, 20, "PNG", seed=9))
    (corpus / "own/3.png").write_bytes(b"torn")
    told = mend(*asked)
    assert told[0] == f"{before.key}: 12 inputs = 10 records + 2 rejects"
    key, _, counts = told[1].partition(": ")
    assert key != before.key
    assert [line.partition("  ")[0] for line in told[2:]] == [
        "mended",
        "still rejected",
        "newly rejected",
    ]
    after = opened.get(key)
    reused = after.manifest.counts["reused_shards"]
    assert 3 <= reused < 6
    assert counts == f"12 inputs = 10 records + 2 rejects; {reused} of 6 shards reused"
    fresh = prepared(Store(str(tmp_path / "fresh")), corpus)
    assert fresh.key == after.key
    assert fresh.manifest.files == after.manifest.files
    assert opened.find(key)
    assert prepared(opened, corpus).key == key  # As a run would find it.
    if not opened.is_remote:
        same = [
            name
            for name in after.manifest.files
            if name.endswith(".tfrecord")
            and os.path.samefile(before.path / name, after.path / name)
        ]
        assert len(same) == reused
    else:
        # What other machines read is what was written, too.
        for name, file in after.manifest.files.items():
            assert opened.files.sha256(f"{after.folder}/{name}") == file.sha256


@pytest.mark.slow
def test_what_cannot_be_mended_is_said(corpus: Path, tmp_path):
    store = str(tmp_path / "store")
    before = prepared(Store(store), corpus)
    raw = before.manifest.inputs["raw"].key
    where = ["--data-root", corpus, "--store", store]
    with pytest.raises(ConfigError, match=r"dataset .*got raw-files-"):
        mend(raw, *where)
    with pytest.raises(ConfigError, match=r"dataset .*matches: none"):
        mend("dataset-ffff", *where)
    with pytest.raises(ConfigError, match=r"data_root .*nowhere"):
        mend(before.key, "--data-root", tmp_path / "nowhere", "--store", store)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError, match=r"files own: .*own .*data_root"):
        mend(before.key, "--data-root", tmp_path / "empty", "--store", store)
