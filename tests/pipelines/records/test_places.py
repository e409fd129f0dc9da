"""Datasets of a store in a bucket: read in ranges, the same records as on a disk."""

import shutil
import types
from pathlib import Path

import pytest

from infra.store.manifest import Recipe
from infra.store.store import Artifact, Attempt, Store
from infra.store.stored_folder import open_stored_folder
from pipelines.records import dataset as datasets
from pipelines.records.blocks import BlockCache
from pipelines.records.dataset import Dataset, DatasetInfo, PartInfo
from pipelines.records.example import encode_example
from pipelines.records.schema import Record
from pipelines.records.tfrecord import write_shard
from tests.gcs.faults import Rule
from tests.gcs.server import GCS

PER_SHARD = 30


def record(number: int) -> Record:
    image = number.to_bytes(4, "big") * 500
    return Record(
        id=f"{number:04d}",
        images=(image,),
        prefix="",
        suffixes=("y",),
        task="t",
        source="s",
        source_sha256="0",
    )


def hold(monkeypatch: pytest.MonkeyPatch, limit: float) -> None:
    """Blocks of this test's own, within a limit [bytes]."""
    own = BlockCache(limit)
    monkeypatch.setattr(datasets, "block_cache", lambda: own)


@pytest.fixture
def server(server: GCS, monkeypatch: pytest.MonkeyPatch) -> GCS:
    monkeypatch.setattr(
        "infra.store.objects.object_client.time", types.SimpleNamespace(sleep=print)
    )
    monkeypatch.setattr(datasets, "BLOCK_BYTES", 7 * 2200)  # Blocks of 7, over shards' ends.
    hold(monkeypatch, 1e6)
    return server


@pytest.fixture
def local(tmp_path: Path) -> Path:
    folder = tmp_path / "local"
    folder.mkdir()
    names = [f"p-{i}.tfrecord" for i in range(3)]
    for i, name in enumerate(names):
        rows = range(i * PER_SHARD, (i + 1) * PER_SHARD)
        write_shard(folder / name, (encode_example(record(row)) for row in rows))
    part = PartInfo(shards=tuple(names), num_records=(PER_SHARD,) * 3)
    DatasetInfo(name="n", parts={"p": part}, num_inputs=90, num_rejected=0, image_px=8).write(
        folder
    )
    (folder / "rejects.jsonl").write_text("")
    return folder


@pytest.fixture
def stored(server: GCS, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """The dataset as an artifact that another machine made."""
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path / "maker"))
    attempt = Attempt(Store(f"{server.uri}/studies"), Recipe(kind="dataset", name="n"))
    shutil.copytree(local, attempt.path, dirs_exist_ok=True)
    key = attempt.commit({}).key
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path / "reader"))
    server.clear()
    return Store(f"{server.uri}/studies").get(key)


def test_records_are_those_of_the_disk_in_every_order(stored: Artifact, local: Path, server: GCS):
    assert stored.uri.startswith(server.uri)
    there, here = Dataset(stored.uri).parts["p"], Dataset(local).parts["p"]
    assert [there[i].id for i in (89, 0, 34)] == [here[i].id for i in (89, 0, 34)]
    assert list(there) == list(here)


def test_few_records_move_few_bytes(stored: Artifact, server: GCS):
    part = Dataset(stored.uri).parts["p"]
    before = server.requests()["media"]["bytes_out"]
    part.expect(31)
    assert [part[i].id for i in (31, 29, 28)] == ["0031", "0029", "0028"]  # Block 28..34.
    moved = server.requests()["media"]["bytes_out"] - before
    assert moved < 8 * 2200 < part.num_bytes / 5


def test_other_bytes_than_are_stored_are_read_again(stored: Artifact, server: GCS):
    part = Dataset(stored.uri).parts["p"]
    server.fail(Rule(action="corrupt", verb="media", times=2))
    assert part[5].id == "0005"
    assert server.faults.fired() == [2]


def test_a_damaged_record_is_an_error_and_no_other_record(
    stored: Artifact, server: GCS, monkeypatch: pytest.MonkeyPatch
):
    part = Dataset(stored.uri).parts["p"]
    server.fail(Rule(action="corrupt", verb="media", times=None))
    with pytest.raises(ValueError, match=rf"record \d+ of {server.uri}/.*p-0.tfrecord is damaged"):
        part[5]
    server.clear()
    assert part[5].id == "0005"  # What failed is not remembered.


def test_little_memory_is_enough(stored: Artifact, monkeypatch: pytest.MonkeyPatch):
    hold(monkeypatch, 1)
    assert [record.id for record in Dataset(stored.uri).parts["p"]] == [
        f"{i:04d}" for i in range(90)
    ]


def test_who_made_it_or_has_a_copy_reads_that(stored: Artifact, server: GCS):
    place = stored.path
    assert stored.uri == str(place)
    asked = server.requests()["media"]["requests"]
    assert len(list(Dataset(stored.uri).parts["p"])) == 90
    assert server.requests()["media"]["requests"] == asked


def test_what_is_no_artifact_is_refused(stored: Artifact, server: GCS):
    wrong = stored.uri[:-3] + "xyz"
    with pytest.raises(ValueError, match="xyz is not an artifact"):
        open_stored_folder(wrong)
    with pytest.raises(ValueError, match=f"{server.uri}/x is not an artifact"):
        open_stored_folder(f"{server.uri}/x")


def test_a_machine_reads_each_block_once_whatever_its_processes(
    stored: Artifact, server: GCS, monkeypatch: pytest.MonkeyPatch
):
    def moved() -> int:
        """Bytes of shards that came from the bucket since this was asked last."""
        sent = sum(size for (name, _), size in server.tally.moved().items() if "tfrecord" in name)
        server.clear()
        return sent

    rows = list(Dataset(stored.uri).parts["p"])
    size = Dataset(stored.uri).parts["p"].num_bytes
    assert moved() == size
    hold(monkeypatch, 1e6)  # Another process has other memory.
    assert list(Dataset(stored.uri).parts["p"]) == rows
    assert moved() == 0
    monkeypatch.setenv("PARCEL_RANGES_GB", "0.0003")  # This dataset is more than half of it.
    hold(monkeypatch, 1e6)
    assert list(Dataset(stored.uri).parts["p"]) == rows
    assert moved() == size


def test_a_block_that_this_machine_keeps_and_that_is_damaged_comes_from_the_bucket(
    stored: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = list(Dataset(stored.uri).parts["p"])
    kept = [*(tmp_path / "reader").rglob("cache/ranges/*/*-*")]
    assert len(kept) > 5
    for path in kept:
        path.write_bytes(path.read_bytes()[::-1])
    for _ in range(2):
        hold(monkeypatch, 1e6)
        assert list(Dataset(stored.uri).parts["p"]) == rows
