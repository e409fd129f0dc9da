"""Hub tables, foreign TFRecords and TFDS folders in a bucket: the same bytes as from a disk."""

import gzip

import pytest

from infra.store.block_reader import RangeError
from pipelines.prepare.run import PrepareConfig, prepare_dataset
from pipelines.records.schema import Reject
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.reading.item import Item
from pipelines.sources.registry import source_spec
from tests.gcs.faults import Rule
from tests.gcs.objects import Content
from tests.pipelines.sources import hub_layouts
from tests.pipelines.sources.test_example_sources import example, put_records, put_tfds

CONFIG = PrepareConfig(image_px=16, num_shards=2, num_workers=1, encoding="png", stall_s=60)
TFDS = {"image": "image", "caption": "captions/text"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "split", "features"),
    [
        ("vqav2", "val", {}),
        ("infovqa", "val", {}),
        ("tfds", "train", TFDS),
        ("tfrecord", "train", {"image": "image", "caption": "text"}),
    ],
)
def test_same_bytes_as_from_a_disk(tmp_path, server, encoded, source, split, features):
    raw = tmp_path / "raw"
    hub_layouts.write_vqav2(raw)
    hub_layouts.write_infovqa(raw)
    (raw / "infovqa/licence.txt").write_text("A bucket has no empty folders.")
    put_tfds(raw, encoded)
    record = example(image=encoded(), text="Plain")
    plain = put_records(raw / "tfrecord/x.tfrecord", record)
    (raw / "tfrecord/y.tfrecord.gz").write_bytes(gzip.compress(plain.read_bytes()))
    server.upload(raw, "raw")
    found = []
    for number, root in enumerate((str(raw), f"{server.uri}/raw")):
        out = tmp_path / f"out-{number}"
        prepare_dataset(
            CONFIG, source=source, split=split, data_root=root, out=str(out), features=features
        )
        found.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert found[0] == found[1]
    assert sum(len(data) for name, data in found[0].items() if name.endswith(".tfrecord")) > 100


def test_a_table_that_comes_damaged_is_no_reject(tmp_path, server):
    hub_layouts.write_vqav2(tmp_path)
    table = tmp_path / "vqav2/data/validation-00000-of-00002.parquet"
    for name in ("raw/vqav2/data/validation-00000.parquet", "raw/web/0.parquet"):
        server.store.put("testing", name, Content.of(table.read_bytes()))

    def read(source: str, split: str) -> list[Item | Reject]:
        corpus = Corpus(f"{server.uri}/raw", source, UnpackedMedia())
        return list(source_spec(source).read_splits(corpus, split))

    (item,), (image,) = read("vqav2", "val"), read("web", "train")
    assert isinstance(item, Item)
    assert isinstance(image, Reject)  # It has no caption.
    for source, split in (("vqav2", "val"), ("web", "train")):
        server.fail(Rule(action="corrupt", verb="media", times=None))
        with pytest.raises(RangeError, match="do not match its checksum"):
            read(source, split)
        server.clear()
