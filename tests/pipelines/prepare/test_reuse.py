"""A dataset of which some inputs were repaired: the bytes of a fresh one, most of them reused."""

import dataclasses
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from pipelines.prepare.job import EarlierDataset
from pipelines.prepare.run import PrepareConfig, make_dataset
from pipelines.records.dataset import Dataset

CONFIG = PrepareConfig(
    image_px=16, num_shards=8, num_workers=1, max_reject_rate=0.9, tasks=("caption", "vqa")
)


@pytest.fixture
def write_corpus(tmp_path, encoded):
    """Returns a function: writes tars of 24 images, one of them torn or not, with captions."""

    def write(*, torn: bool = True, captions: dict[int, str] | None = None, asked: bool = True):
        root = tmp_path / "corpus"
        (root / "web").mkdir(parents=True, exist_ok=True)
        for shard in range(2):
            with tarfile.open(root / f"web/{shard:05d}.tar", "w") as archive:
                for i in range(12 * shard, 12 * shard + 12):
                    image = encoded(40, 30, seed=i)
                    qa = [{"question": "how many?", "answer": i}] if asked and i == 3 else []
                    members = {
                        "jpg": image[:-50] if torn and i in (7, 20) else image,
                        "txt": (captions or {}).get(i, f"picture {i}").encode(),
                        "json": json.dumps({"qa": qa}).encode(),
                    }
                    for extension, data in members.items():
                        member = tarfile.TarInfo(f"{i:09d}.{extension}")
                        member.size = len(data)
                        archive.addfile(member, io.BytesIO(data))
        return root

    return write


def made(
    corpus: Path, out: Path, earlier: Path | None = None, *, source: str = "web", **changes
) -> int:
    """Prepares into a folder, and returns how many shards were taken."""
    config = dataclasses.replace(CONFIG, **changes)
    given = earlier and EarlierDataset(store=str(out.parent), folder=earlier.name)
    where = {"data_root": str(corpus), "work": f"{out}-work"}
    result = make_dataset(config, source=source, split="train", earlier=given, **where)
    out.mkdir()
    for name, (stored, _) in result.files.items():
        os.link(f"{out}-work/{stored}", out / name)
    return result.num_taken


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


@pytest.mark.slow
def test_what_was_mended_is_written_again_and_nothing_else(write_corpus, tmp_path):
    made(write_corpus(), tmp_path / "torn")
    assert {r.id.partition("#")[0] for r in Dataset(tmp_path / "torn").rejects()} == {
        "web/00000/000000007",
        "web/00001/000000020",
    }
    mended = write_corpus(torn=False)  # Longer images: all that follows lies elsewhere.
    assert made(mended, tmp_path / "fresh") == 0
    taken = made(mended, tmp_path / "again", tmp_path / "torn")
    assert digests(tmp_path / "again") == digests(tmp_path / "fresh")
    assert not list(Dataset(tmp_path / "again").rejects())
    assert 6 <= taken < 8
    names = [f"caption-{shard:05d}-of-00008.tfrecord" for shard in range(8)]
    same = [os.path.samefile(tmp_path / "torn" / n, tmp_path / "again" / n) for n in names]
    empty = sum((tmp_path / "again" / name).stat().st_size == 0 for name in names)
    assert sum(same) + empty == taken


@pytest.mark.slow
def test_a_corrected_row_changes_its_shard_and_rejects_stay(write_corpus, tmp_path):
    made(write_corpus(), tmp_path / "a")
    corrected = write_corpus(captions={11: "another picture"})
    made(corrected, tmp_path / "fresh")
    taken = made(corrected, tmp_path / "b", tmp_path / "a", num_workers=2)
    assert digests(tmp_path / "b") == digests(tmp_path / "fresh")
    assert taken == 7


@pytest.mark.slow
def test_parts_may_come_and_go(write_corpus, tmp_path):
    made(write_corpus(), tmp_path / "with")
    without = write_corpus(asked=False)
    made(without, tmp_path / "fresh")
    assert made(without, tmp_path / "without", tmp_path / "with") == 7
    assert digests(tmp_path / "without") == digests(tmp_path / "fresh")
    again = write_corpus()
    assert made(again, tmp_path / "again", tmp_path / "without") == 7
    assert digests(tmp_path / "again") == digests(tmp_path / "with")


@pytest.mark.slow
def test_shards_of_records_with_one_picture_and_with_two_are_taken(tmp_path, encoded):
    root = tmp_path / "corpus"
    (root / "jsonl").mkdir(parents=True)
    rows = []
    for i in range(16):
        (root / f"jsonl/{i}.jpg").write_bytes(encoded(40, 30, seed=i)[: -50 if i == 3 else None])
        image = [f"{i}.jpg", f"{i - 1}.jpg"] if i % 3 == 2 else f"{i}.jpg"
        rows.append({"image": image, "prefix": "?", "suffix": str(i)})
    (root / "jsonl/train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made(root, tmp_path / "torn", source="jsonl")
    (root / "jsonl/3.jpg").write_bytes(encoded(40, 30, seed=3))
    assert made(root, tmp_path / "fresh", source="jsonl") == 0
    assert made(root, tmp_path / "again", tmp_path / "torn", source="jsonl") >= 5
    assert digests(tmp_path / "again") == digests(tmp_path / "fresh")
    parts = Dataset(tmp_path / "again").parts
    counts = {name: {len(one.images) for one in part} for name, part in parts.items()}
    assert counts == {"jsonl": {1}, "jsonl@2": {2}}
