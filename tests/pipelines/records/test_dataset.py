"""A dataset folder: random access over its shards, counts that add up."""

import pytest

from pipelines.records.dataset import Dataset, DatasetInfo, PartInfo, shard_of
from pipelines.records.example import encode_example
from pipelines.records.schema import Record
from pipelines.records.tfrecord import write_shard


def record(name: str) -> Record:
    return Record(
        id=name, images=(b"x",), prefix="", suffixes=("y",), task="t", source="s", source_sha256="0"
    )


@pytest.fixture
def folder(tmp_path):
    write_shard(tmp_path / "p-0.tfrecord", map(encode_example, (record("a"), record("d"))))
    write_shard(tmp_path / "p-1.tfrecord", [])
    write_shard(tmp_path / "p-2.tfrecord", [encode_example(record("b"))])
    part = PartInfo(shards=("p-0.tfrecord", "p-1.tfrecord", "p-2.tfrecord"), num_records=(2, 0, 1))
    info = DatasetInfo(name="n", parts={"p": part}, num_inputs=4, num_rejected=1, image_px=8)
    info.write(tmp_path)
    (tmp_path / "rejects.jsonl").write_text(
        '{"id": "c", "stage": "decode", "reason": "empty", "source": "s", "source_sha256": ""}\n'
    )
    return tmp_path


def test_positions_run_over_the_shards(folder):
    part = Dataset(folder).parts["p"]
    assert [part[i].id for i in (2, 0, 1)] == ["b", "a", "d"]
    with pytest.raises(IndexError, match=r"0\.\.2, got 3"):
        part[3]
    assert [reject.id for reject in Dataset(folder).rejects()] == ["c"]


def test_lost_inputs_are_an_error():
    with pytest.raises(ValueError, match="lost inputs: 5 read, 0 written, 1 rejected"):
        DatasetInfo(name="n", parts={}, num_inputs=5, num_rejected=1, image_px=8)


def test_missing_records_are_an_error(folder):
    write_shard(folder / "p-2.tfrecord", [])
    with pytest.raises(ValueError, match="holds 0 records, expected 1"):
        Dataset(folder)


def test_shard_is_pinned_and_ignores_the_task():
    assert [shard_of(f"web/{i}#ocr", 7) for i in range(6)] == [
        shard_of(f"web/{i}#detect", 7) for i in range(6)
    ]
    assert [shard_of(name, 5) for name in ("a", "b", "web/00000/000000012")] == [3, 3, 2]
