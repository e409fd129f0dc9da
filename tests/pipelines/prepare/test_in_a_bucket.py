"""Raw data and datasets in a bucket: the bytes of those on a disk, each read once."""

import dataclasses
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from infra.store import block_reader
from pipelines.prepare.estimate import estimate_dataset
from pipelines.prepare.run import PrepareConfig, prepare_dataset
from pipelines.records.dataset import Dataset
from tests.gcs.faults import Rule
from tests.gcs.objects import Content

CONFIG = PrepareConfig(
    image_px=16, num_shards=3, num_workers=2, num_frames=2, max_reject_rate=0.9, stall_s=60
)
KEYS = 12


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, encoded, write_video) -> Path:
    """Archives, packed and not, tables, clips, and what is wrong with some of them."""
    root = tmp_path_factory.mktemp("corpus")
    (root / "web/more").mkdir(parents=True)
    (root / "chartqa/val/png").mkdir(parents=True)
    for number, name in enumerate(("0.tar", "1.tar", "1.tgz", "more/2.tar", "more/3.tgz")):
        with tarfile.open(root / "web" / name, "w:gz" if "tgz" in name else "w") as archive:
            for i in range(KEYS):
                image = encoded(60, 50, seed=KEYS * number + i)
                for ending, data in (("jpg", image), ("txt", f"picture {i}".encode())):
                    member = tarfile.TarInfo(f"{i:03d}.{ending}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    damaged = (root / "web/more/2.tar").read_bytes()
    (root / "web/more/4.tar").write_bytes(damaged[: len(damaged) // 2])
    write_video(root / "web/clip.mp4")
    (root / "web/a.jpg").write_bytes(encoded(40, 30))
    rows = [{"image": "a.jpg", "text": "a"}, {"image": "b.jpg", "text": "b"}]
    rows += [{"video": "clip.mp4", "text": "c"}, {"url": "http://x.org/a.jpg", "text": "d"}]
    rows += [{"image": "../../a.jpg", "text": "e"}]
    (root / "web/table.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (root / "chartqa/val/png/1.png").write_bytes(encoded(40, 30, "PNG"))
    questions = [{"imgname": f"{i}.png", "query": "how many?", "label": "2"} for i in (1, 2)]
    (root / "chartqa/val/val_human.json").write_text(json.dumps(questions))
    (root / "chartqa/val/val_augmented.json").write_text("[]")
    return root


def bytes_of(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "split", "shard_by"),
    [("web", "train", "id"), ("web", "train", "archive"), ("chartqa", "val", "id")],
)
def test_a_bucket_gives_the_bytes_of_a_disk(corpus, tmp_path, server, source, split, shard_by):
    server.upload(corpus, "raw")
    config = dataclasses.replace(CONFIG, shard_by=shard_by)
    words = {"source": source, "split": split}
    prepare_dataset(config, **words, data_root=str(corpus), out=str(tmp_path / "disk"))
    prepare_dataset(config, **words, data_root=f"{server.uri}/raw", out=f"{server.uri}/out")
    expected = bytes_of(tmp_path / "disk")
    bucket = server.store.bucket("testing")
    found = {n: bucket.objects[n].data for n in bucket.names if not n.startswith("raw/")}
    assert found == {f"out/{name}": data for name, data in expected.items()}
    assert Dataset(tmp_path / "disk").info.num_records > 0


@pytest.mark.parametrize("max_units", [8, 3])  # All are listed, or three of six.
def test_a_sample_of_a_bucket_is_that_of_a_disk(corpus, tmp_path, server, max_units):
    server.upload(corpus, "raw")
    more: dict[str, Any] = {"source": "web", "split": "train", "scratch": str(tmp_path)}
    disk, bucket = (
        estimate_dataset(CONFIG, data_root=root, count=20, max_units=max_units, **more)
        for root in (str(corpus), f"{server.uri}/raw")
    )
    assert disk.core_s.high > 0
    assert bucket.num_sampled >= 20
    assert bucket == dataclasses.replace(disk, core_s=bucket.core_s)


@pytest.mark.slow
def test_each_byte_of_an_archive_is_read_once(corpus, tmp_path, server, monkeypatch):
    monkeypatch.setattr(block_reader, "BLOCK", 16_000)  # Some five images.
    server.upload(corpus, "raw")
    config = dataclasses.replace(CONFIG, shard_by="archive")
    server.tally.clear()
    prepare_dataset(
        config, source="web", split="train", data_root=f"{server.uri}/raw", out=str(tmp_path)
    )
    moved, objects = server.tally.moved(), server.store.bucket("testing").objects
    tars = {name: len(held.data) for name, held in objects.items() if name.endswith(("tar", "tgz"))}
    for name, size in tars.items():
        assert moved[name, "out"] <= 1.1 * size + 2000, name  # And a reply with its size.


@pytest.fixture
def one_archive(server, corpus) -> PrepareConfig:
    """A bucket with one archive, and how it is prepared."""
    archive = (corpus / "web/0.tar").read_bytes()
    server.store.put("testing", "raw/web/0.tar", Content.of(archive))
    return dataclasses.replace(CONFIG, num_workers=1)


@pytest.mark.slow
def test_a_range_with_other_bytes_is_read_again(one_archive, server, tmp_path):
    words = {"source": "web", "split": "train", "data_root": f"{server.uri}/raw"}
    prepare_dataset(one_archive, **words, out=str(tmp_path / "a"))
    # The first request is the listing's; the pictures follow, each by one of its own.
    server.fail(Rule(action="corrupt", verb="media", name="*.tar", skip=1))
    prepare_dataset(one_archive, **words, out=str(tmp_path / "b"))
    assert server.faults.fired() == [1]
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


@pytest.mark.parametrize("shard_by", ["id", "archive"])
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"action": "corrupt"}, "do not match its checksum|came with other bytes"),
        ({"action": "answer", "status": 403}, "Forbidden"),
    ],
)
def test_what_a_bucket_does_not_bring_is_no_damage_of_an_archive(
    one_archive, server, tmp_path, shard_by, fault, told
):
    config = dataclasses.replace(one_archive, shard_by=shard_by)
    server.fail(Rule(**fault, verb="media", name="*.tar", times=None))
    with pytest.raises(RuntimeError, match=told):
        prepare_dataset(
            config, source="web", split="train", data_root=f"{server.uri}/raw", out=str(tmp_path)
        )
