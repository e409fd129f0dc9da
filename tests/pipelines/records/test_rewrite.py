"""A dataset written again: records changed, rejected or copied, and all in the account."""

import dataclasses
from pathlib import Path

import pytest

from pipelines.records import example
from pipelines.records.dataset import Dataset, DatasetInfo, PartInfo
from pipelines.records.rewrite import rewrite_dataset
from pipelines.records.schema import Record
from pipelines.records.tfrecord import write_shard

IDS = "abcde"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "dataset"
    folder.mkdir()
    records = [
        Record(
            id=name,
            images=(b"picture",),
            prefix="caption en",
            suffixes=(name,),
            task="caption",
            source=f"{name}.png",
            source_sha256="5f1c",
        )
        for name in IDS
    ]
    shards = ("caption-0.tfrecord", "caption-1.tfrecord")
    halves = (records[:2], records[2:])
    counts = tuple(
        write_shard(folder / shard, map(example.encode_example, half))
        for shard, half in zip(shards, halves, strict=True)
    )
    (folder / "rejects.jsonl").write_text(
        '{"id": "z", "reason": "bad", "source": "z.png", "source_sha256": "", "stage": "decode"}\n'
    )
    DatasetInfo(
        name="captions",
        parts={"caption": PartInfo(shards=shards, num_records=counts)},
        num_inputs=6,
        num_rejected=1,
        image_px=8,
    ).write(folder)
    return folder


def test_records_are_changed_rejected_or_copied(dataset: Path, tmp_path: Path):
    def change(record: Record) -> Record | str:
        if record.id == "b":
            return "not wanted"
        return dataclasses.replace(record, suffixes=("new",)) if record.id == "d" else record

    out = tmp_path / "out"
    out.mkdir()
    counts = rewrite_dataset(dataset, change, stage="choice", out=out)
    assert counts == {"records": 4, "rejected": 1, "changed": 1}
    now = Dataset(out)
    assert [(r.id, r.suffixes) for r in now.records()] == [
        ("a", ("a",)),
        ("c", ("c",)),
        ("d", ("new",)),
        ("e", ("e",)),
    ]
    rejects = [(r.id, r.stage, r.reason, r.source) for r in now.rejects()]
    assert rejects == [("b", "choice", "not wanted", "b.png"), ("z", "decode", "bad", "z.png")]
    assert (now.info.num_inputs, now.info.num_rejected) == (6, 2)


def test_records_that_stay_are_the_same_bytes(dataset: Path, tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    rewrite_dataset(dataset, lambda record: record, stage="choice", out=out)
    files = {path.name: path.read_bytes() for path in dataset.iterdir()}
    assert {path.name: path.read_bytes() for path in out.iterdir()} == files


def test_a_record_has_its_id_and_its_task(dataset: Path, tmp_path: Path):
    for field in ("id", "task"):
        out = tmp_path / field
        out.mkdir()
        with pytest.raises(ValueError, match="must leave id and task"):
            rewrite_dataset(
                dataset,
                lambda record, field=field: dataclasses.replace(record, **{field: "x"}),
                stage="choice",
                out=out,
            )
