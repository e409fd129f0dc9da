"""Web corpora: six task kinds from one image, and every odd sample accounted for."""

import errno
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from infra.store.disk import Disk
from pipelines.records.rle import encode_mask
from pipelines.records.schema import MASK_MARKER
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.reading.item import BOX_MARKER
from pipelines.sources.reading.media_reader import MediaReader
from pipelines.sources.registry import source_spec

MASK = json.loads(encode_mask(np.eye(23, 31, dtype=bool)))
FULL = {
    "width": 31,
    "height": 23,
    "captions": {"de": "Ein  Kreis.", "en": "A circle."},
    "ocr": [
        {"text": "world", "box": [14, 1, 20, 6]},
        {"text": "below", "box": [1, 9, 9, 15]},
        {"text": "Hello", "box": [1, 2, 9, 8]},
    ],
    "objects": [
        {"label": "square", "box": [1, 12, 9, 20], "mask": MASK},
        {"label": "circle", "box": [20, 2, 30, 9], "mask": MASK},
        {"label": "circle", "box": [2, 2, 11, 9], "mask": MASK},
    ],
    "qa": [{"question": "How many circles?", "answer": 2}],
}


def write_tar(path, members, mode="w"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


@pytest.fixture
def one_tar(tmp_path, encoded):
    members = {
        "000000012.jpg": encoded(),
        "000000012.txt": b"ignored for the captions",
        "000000012.json": json.dumps(FULL).encode(),
        "000000013.jpg": encoded(seed=1),
        "000000013.txt": b"Plain\ncaption",
    }
    write_tar(tmp_path / "web/00000.tar", members)
    return tmp_path


def test_one_image_gives_seven_task_kinds(one_tar, read_source):
    items, rejects = read_source("web", "train", one_tar, per_task=9)
    assert not rejects
    by_id = {item.id.removeprefix("web/00000/000000012#"): item for item in items}
    box = BOX_MARKER
    assert {k: (i.prefix, i.suffixes[0]) for k, i in by_id.items() if "000000013" not in k} == {
        "caption.de": ("caption de", "Ein Kreis."),
        "caption.en": ("caption en", "A circle."),
        "grounded_caption.0": (f"caption {box}", "circle"),
        "grounded_caption.1": (f"caption {box}", "circle"),
        "grounded_caption.2": (f"caption {box}", "square"),
        "ocr": ("ocr", "Hello world below"),
        "vqa.0": ("answer en How many circles?", "2"),
        "question.0": ("question en 2", "How many circles?"),
        "detect": (
            "detect circle ; square",
            f"{box} circle ; {box} circle ; {box} square",
        ),
        "segment.circle": (
            "segment circle",
            f"{box}{MASK_MARKER} circle ; {box}{MASK_MARKER} circle",
        ),
        "segment.square": ("segment square", f"{box}{MASK_MARKER} square"),
    }
    assert by_id["detect"].boxes == ((2, 2, 11, 9), (20, 2, 30, 9), (1, 12, 9, 20))
    assert by_id["vqa.0"].answers == ("2",)
    assert by_id["caption.de"].lang == "de"


def test_one_record_per_task_by_default(one_tar, read_source):
    items, _ = read_source("web", "train", one_tar)
    kinds = [item.task for item in items if "000000012" in item.id]
    assert sorted(kinds) == [
        "caption",
        "detect",
        "grounded_caption",
        "ocr",
        "question",
        "segment",
        "vqa",
    ]


def test_only_the_tasks_asked_for_are_made(one_tar, read_source):
    items, rejects = read_source("web", "train", one_tar, tasks=("question", "ocr"))
    assert [item.task for item in items] == ["ocr", "question"]
    assert [(r.id[-9:], r.reason) for r in rejects] == [("#question", "no caption or annotation")]


def test_plain_rows_give_only_a_caption(one_tar, read_source):
    items, _ = read_source("web", "train", one_tar, per_task=9)
    plain = [item for item in items if "000000013" in item.id]
    assert [(i.id, i.suffixes) for i in plain] == [
        ("web/00000/000000013#caption.en", ("Plain caption",))
    ]
    assert plain[0].media[0].source == "web/00000.tar/000000013.jpg"


def test_offsets_lead_to_the_members_bytes(one_tar, read_source, encoded):
    items, _ = read_source("web", "train", one_tar)
    media = next(item.media[0] for item in items if "000000013" in item.id)
    assert MediaReader(one_tar).read(media) == encoded(seed=1)


def test_compressed_archives_are_unpacked(tmp_path, encoded):
    write_tar(tmp_path / "web/a.tgz", {"x/1.png": encoded(kind="PNG"), "x/1.txt": b"hi"}, "w:gz")
    with (tmp_path / "unpacked").open("wb") as unpacked:
        corpus = Corpus(tmp_path, "web", UnpackedMedia(unpacked, "unpacked"))
        (item,) = source_spec("web").read(corpus, "train")
    assert item.id == "web/a/x/1#caption.en"
    assert item.media[0].source == "web/a.tgz/x/1.png"
    assert MediaReader(tmp_path, Disk(tmp_path)).read(item.media[0]) == encoded(kind="PNG")


def test_odd_samples_are_rejects_with_a_reason(tmp_path, encoded, read_source):
    members = {
        "1.jpg": encoded(),
        "2.txt": b"no image",
        "3.jpg": encoded(),
        "3.txt": b"\xff\xfe\x00",
        "4.jpg": encoded(),
        "4.json": b"{",
        "5.jpg": encoded(),
        "5.txt": b"fine",
        "5.json": json.dumps({"objects": [{"label": "x"}]}).encode(),
        "6.cls": b"7",
    }
    write_tar(tmp_path / "web/a.tar", members)
    items, rejects = read_source("web", "train", tmp_path)
    assert [item.id for item in items] == ["web/a/5#caption.en"]
    reasons = {reject.id: reject.reason for reject in rejects}
    assert reasons.pop("web/a/1#caption") == "no caption or annotation"
    assert reasons.pop("web/a/2") == "no image among .txt"
    assert reasons.pop("web/a/3") == "3.txt is not UTF-8"
    assert reasons.pop("web/a/4").startswith("metadata is not JSON")
    assert reasons.pop("web/a/6") == "no image among .cls"
    assert set(reasons) == {f"web/a/5#{t}" for t in ("detect", "grounded_caption", "segment")}
    assert all("'box' is missing" in reason for reason in reasons.values())


def test_cut_off_archive_keeps_what_is_whole(one_tar, read_source):
    path = one_tar / "web/00000.tar"
    path.write_bytes(path.read_bytes()[:2000])
    items, rejects = read_source("web", "train", one_tar)
    assert [reject.id for reject in rejects if "damaged archive" in reject.reason] == ["web/00000"]
    assert all("000000012" in one.id for one in items)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_an_error_of_the_machine_is_no_damaged_archive(one_tar, read_source, monkeypatch, number):
    opened = Path.open

    def fails(path: Path, *args: Any, **given: Any) -> Any:
        if path.suffix == ".tar":
            raise OSError(number, os.strerror(number))
        return opened(path, *args, **given)

    monkeypatch.setattr(Path, "open", fails)
    with pytest.raises(OSError, match=os.strerror(number)):
        read_source("web", "train", one_tar)


def test_metadata_parquet_beside_a_tar_is_not_read_twice(one_tar, read_source):
    before = read_source("web", "train", one_tar)
    parquet.write_table(pa.table({"url": ["http://x/y.jpg"]}), one_tar / "web/00000.parquet")
    assert read_source("web", "train", one_tar) == before


def test_tables(tmp_path, encoded, read_source):
    folder = tmp_path / "web"
    (folder / "pics").mkdir(parents=True)
    (folder / "pics/a.jpg").write_bytes(encoded())
    rows = {"image": [{"bytes": encoded(), "path": None}, None], "caption": ["in bytes", "nothing"]}
    parquet.write_table(pa.table(rows), folder / "b.parquet")
    lines = [
        '{"images": ["pics/a.jpg"], "text": "<__dj__image> listed"}',
        '{"videos": ["v.mp4"], "text": "<__dj__video> moving"}',
        '{"image": "../../../etc/passwd", "text": "hostile"}',
        "not json",
        "[]",
    ]
    (folder / "c.jsonl").write_text("\n".join(lines))
    (folder / "d.tsv").write_text("by path\tpics/a.jpg\nby url\thttp://h/q/a.jpg?x=1\nalone\n")
    (folder / "images").mkdir()
    (folder / "images/a.jpg").write_bytes(encoded())
    items, rejects = read_source("web", "train", tmp_path)
    assert [(i.id, i.suffixes[0], i.media[0].source, i.media[0].video) for i in items] == [
        ("web/b.parquet/000000000#caption.en", "in bytes", "web/b.parquet/000000000.image", False),
        ("web/c.jsonl/000000000#caption.en", "listed", "web/pics/a.jpg", False),
        ("web/c.jsonl/000000001#caption.en", "moving", "web/v.mp4", True),
        ("web/d.tsv/000000000#caption.en", "by path", "web/pics/a.jpg", False),
        ("web/d.tsv/000000001#caption.en", "by url", "web/images/a.jpg", False),
    ]
    assert [(r.id, r.reason.split(":")[0]) for r in rejects] == [
        ("web/b.parquet/000000001", "no image among the fields image, caption"),
        ("web/c.jsonl/000000002", "path leaves the data root"),
        ("web/c.jsonl/000000003", "not JSON from character 1 on"),
        ("web/c.jsonl/000000004", "row is a list, not an object"),
        ("web/d.tsv/000000002", "line has no tab"),
    ]


def test_empty_folder_names_itself(tmp_path, read_source):
    (tmp_path / "web").mkdir()
    with pytest.raises(FileNotFoundError, match=r"web holds no \.tar"):
        read_source("web", "train", tmp_path)
