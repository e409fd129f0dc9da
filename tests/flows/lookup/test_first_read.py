"""What a command reads in ranges is not digested whole when an artifact is named."""

from pathlib import Path

import pytest

from flows.lookup.predict import find_checkpoint
from flows.lookup.runs import find_dataset
from infra.store.digest_check import DamagedArtifactError
from infra.store.store import Artifact, Store
from model.checkpoint.folder import load_params
from pipelines.records.dataset import Dataset
from tests.flows.lineage.conftest import data_of, made
from tests.model.tiny_data import color_record
from tests.model.tiny_model import tiny_model, write_checkpoint


def flip(store: Store, artifact: Artifact, ending: str, at: int) -> None:
    (path,) = (store.state / artifact.folder).glob(f"*{ending}")
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def test_a_dataset_is_checked_record_by_record(tmp_path: Path):
    store = Store(tmp_path / "store")
    artifact = data_of(store, tmp_path, "web", [color_record(i) for i in range(3)])
    flip(store, artifact, ".tfrecord", -1)
    part = Dataset(find_dataset(artifact.key, store.uri)).parts["color"]
    assert part[0].id == color_record(0).id
    with pytest.raises(ValueError, match=r"record 2 of .* is damaged"):
        part[2]


def test_a_file_without_checksums_is_checked_whole(tmp_path: Path):
    store = Store(tmp_path / "store")
    artifact = data_of(store, tmp_path, "web", [color_record(i) for i in range(3)])
    flip(store, artifact, "dataset.json", 5)
    with pytest.raises(DamagedArtifactError, match=r"dataset\.json of dataset-"):
        find_dataset(artifact.key, store.uri)


def test_a_checkpoint_is_checked_block_by_block(tmp_path: Path):
    store = Store(tmp_path / "store")
    folder = write_checkpoint(tmp_path, tiny_model())
    artifact = made(store, "checkpoint", "stage1", {}, folder=Path(folder))
    flip(store, artifact, ".safetensors", -1)
    place = find_checkpoint(artifact.key, store.uri)
    with pytest.raises(ValueError, match=r"\.safetensors is damaged between bytes"):
        load_params(place)
