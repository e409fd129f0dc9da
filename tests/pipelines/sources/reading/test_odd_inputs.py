"""Data as strangers have it: each kind of odd input, drawn, is read as it is meant or accounted."""

import bz2
import gzip
import io
import json
import lzma
import math
import re
import tarfile
import tempfile
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet

from infra.store.disk import Disk
from pipelines.records.example import _Example as Example
from pipelines.records.example import encode_example
from pipelines.records.schema import BadInput, Omission, Record, Reject
from pipelines.records.tfrecord import write_shard
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.reading.item import Item
from pipelines.sources.reading.media_reader import MediaReader
from pipelines.sources.reading.values import answer_of, text_of, without_absent
from pipelines.sources.registry import source_spec

MARK = b"\xef\xbb\xbf"
MEMBER = re.compile(r"^((?:.*/|)[^./]+)[.]([^/]*)$")
"""How webdataset takes a member's name apart: key and extension."""


def picture(grey: int, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((12, 12, 3), grey, np.uint8)).save(buffer, kind)
    return buffer.getvalue()


class Listed:
    """What a source gives: items, rejects, omissions, and the bytes of the items' pictures."""

    def __init__(self, root: Path, source: str = "web", split: str = "train", **options: Any):
        spec = source_spec(source)
        with (root / "unpacked").open("wb", buffering=0) as unpacked:
            corpus = Corpus(root, spec.folder, UnpackedMedia(unpacked, "unpacked"), **options)
            found = list(spec.read_splits(corpus, split))
        self.items = [entry for entry in found if isinstance(entry, Item)]
        self.rejects = [entry for entry in found if isinstance(entry, Reject)]
        self.omissions = {*corpus.omissions(), *spec.omissions_of(corpus, split)}
        reader = MediaReader(root, Disk(root))
        self.pixels = {item.id: reader.read(item.media[0]) for item in self.items}
        self.by_id = {item.id: item for item in self.items}
        self.reasons = {reject.id: reject.reason for reject in self.rejects}

    def texts(self) -> set[tuple]:
        return {(item.task, item.prefix, item.suffixes, item.lang) for item in self.items}


def write_tar(
    path: Path, members: Sequence[tuple[tarfile.TarInfo | str, bytes | str]], mode: str = "w"
):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for member, content in members:
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            if info.isfile():
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def write_rows(root: Path, rows: list, name: str = "web/a.jsonl") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / name).parent.joinpath("a.png").write_bytes(picture(9))


# Texts, and what is no text.

NO_TEXT = st.one_of(
    st.booleans(),
    st.integers(-9, 9),
    st.floats(allow_nan=False, allow_infinity=False),
    st.just({"en": 1}),
)
ABSENT = st.sampled_from([None, math.nan])
GOOD = {
    "image": "a.png",
    "caption": "red",
    "LANGUAGE": "en",
    "captions": {"de": "rot"},
    "qa": [{"question": "what?", "answer": "a", "lang": "en"}],
    "ocr": [{"text": "word", "box": [1, 1, 5, 5]}],
    "objects": [{"label": "circle", "box": [1, 1, 5, 5]}],
}
PLACES = (
    ("caption",),
    ("LANGUAGE",),
    ("captions", "de"),
    ("qa", 0, "question"),
    ("qa", 0, "answer"),
    ("qa", 0, "lang"),
    ("ocr", 0, "text"),
    ("objects", 0, "label"),
)


def with_value(place: tuple, value: object, *, drop: bool = False) -> dict:
    row = json.loads(json.dumps(GOOD))
    inner = row
    for step in place[:-1]:
        inner = inner[step]
    if drop:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return row


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(PLACES), NO_TEXT)
def test_a_text_is_a_text_or_the_row_names_field_and_value(place, value):
    with tempfile.TemporaryDirectory() as folder:
        write_rows(Path(folder), [with_value(place, value), GOOD])
        listed = Listed(Path(folder), per_task=9)
    whole = [item for item in listed.items if "/000000001#" in item.id]
    assert len(whole) == 7  # The row after it is as good as ever.
    for item in listed.items:
        for text in (item.prefix, item.lang, *item.suffixes, *item.answers):
            assert isinstance(text, str)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if place[-1] == "answer" and is_number:  # Counts are answers, too.
        assert answer_of(value, "answer") in {item.suffixes[0] for item in listed.items}
    else:
        field = "caption" if place[0] in ("caption", "captions") else str(place[-1])
        told = [reject.reason for reject in listed.rejects]
        assert told
        assert all(field in reason and repr(value)[:40] in reason for reason in told)


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(PLACES), ABSENT)
def test_null_nan_and_a_missing_key_are_the_same(place, value):
    found = []
    for row in (with_value(place, value), with_value(place, None, drop=True)):
        with tempfile.TemporaryDirectory() as folder:
            write_rows(Path(folder), [row])
            listed = Listed(Path(folder), per_task=9)
        found.append((listed.items, listed.reasons))
    assert found[0] == found[1]


OWN = {"image": "a.png", "question": "what?", "answers": ["red"], "meta": {"kind": "a"}}


@settings(deadline=None, max_examples=25)
@given(st.lists(st.sampled_from(["video", "suffix", "prefix", "id", "task", "lang"])), ABSENT)
def test_columns_without_values_are_left_out_of_own_rows(columns, value):
    row = {**OWN, **dict.fromkeys(columns, value), "meta": {"kind": "a", "none": value}}
    with tempfile.TemporaryDirectory() as folder:
        write_rows(Path(folder), [row, row], "jsonl/train.jsonl")
        listed = Listed(Path(folder), "jsonl")
    assert not listed.rejects
    assert [item.id for item in listed.items] == [f"jsonl/train/a.png#{n}" for n in range(2)]
    assert listed.items[0].meta == {"kind": "a"}


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(["question", "answers", "suffix", "task", "lang", "id"]), NO_TEXT)
def test_own_rows_name_field_and_value(field, value):
    with tempfile.TemporaryDirectory() as folder:
        write_rows(Path(folder), [{**OWN, field: value}, OWN], "jsonl/train.jsonl")
        listed = Listed(Path(folder), "jsonl")
    assert len(listed.items) == (2 if field == "id" and type(value) in (int, float) else 1)
    for reject in listed.rejects:
        assert field in reject.reason
        assert repr(value)[:40] in reject.reason


def test_answers_are_read_as_they_are_meant(tmp_path):
    answers = [None, math.nan, 2.0, ["red", "crimson"], 0.5, [], True]
    row = {"image": "a.png", "qa": [{"question": "q", "answer": answer} for answer in answers]}
    write_rows(tmp_path, [row])
    listed = Listed(tmp_path, tasks=("vqa",), per_task=9)
    assert {item.id[-1]: item.answers for item in listed.items} == {
        "2": ("2",),
        "3": ("red", "crimson"),
        "4": ("0.5",),
    }
    assert {name[-1] for name in listed.reasons} == {"0", "1", "5", "6"}
    assert "got True" in listed.reasons["web/a.jsonl/000000000#vqa.6"]


def test_a_language_without_a_caption_costs_no_other(tmp_path):
    rows = {
        "image": [{"bytes": picture(n), "path": None} for n in range(2)],
        "captions": [{"en": "a", "de": "b", "fr": None}, {"en": "c", "de": "d", "fr": "e"}],
    }
    (tmp_path / "web").mkdir()
    parquet.write_table(pa.table(rows), tmp_path / "web/s.parquet")
    listed = Listed(tmp_path, per_task=5)
    assert not listed.rejects
    assert sorted(item.suffixes[0] for item in listed.items) == ["a", "b", "c", "d", "e"]


def test_a_label_of_null_is_no_answer(tmp_path):
    folder = tmp_path / "chartqa/val"
    (folder / "png").mkdir(parents=True)
    (folder / "png/0.png").write_bytes(picture(3))
    rows = [{"imgname": "0.png", "query": "q", "label": label} for label in (None, 2.0, "x")]
    (folder / "val_human.json").write_text(json.dumps(rows))
    listed = Listed(tmp_path, "chartqa", "val")
    assert [item.answers for item in listed.items] == [("2",), ("x",)]
    assert list(listed.reasons.values()) == ["label must be a text, got None"]


@given(st.text())
def test_a_mark_is_no_part_of_a_text(text):
    plain = text.lstrip("\ufeff")
    assert text_of(f"\ufeff{plain}", "caption") == plain
    assert text_of(MARK + plain.encode("utf-8", "ignore"), "x") == text_of(
        plain.encode("utf-8", "ignore"), "x"
    )


def test_absent_values_are_those_of_every_library():
    row = {"a": np.float32("nan"), "b": [None, {"c": np.nan}], "d": np.int64(3), "e": 0, "f": ""}
    assert without_absent(row) == {"b": [None, {}], "d": 3, "e": 0, "f": ""}
    assert answer_of(np.int64(3), "x") == answer_of(Decimal("3.00"), "x") == "3"
    for value in (np.bool_(True), math.inf, [1], b"\xff"):
        with pytest.raises(BadInput, match=r"^x "):
            answer_of(value, "x")


# Members of archives.

KEYS = ("000", "a.b", "x/1", "x/1.2", "./7")
EXTENSIONS = ("jpg", "PNG", "txt", "json", "depth.png", "seg.jpg", "cls", "1.jpg", "npy")
NAMES = st.builds(
    lambda key, extension: f"{key}.{extension}", st.sampled_from(KEYS), st.sampled_from(EXTENSIONS)
)
HIDDEN = st.sampled_from(["._000.jpg", "./._x.txt", ".DS_Store", "x/._1.png", "README"])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.one_of(NAMES, HIDDEN), unique=True, max_size=12), st.sampled_from(["w", "w:gz"]))
def test_every_member_is_in_a_record_a_reject_or_the_account(names, mode):
    contents = {"json": b'{"ocr": []}', "txt": b"a caption"}
    members = [
        (name, contents.get(name.rpartition(".")[2], picture(n))) for n, name in enumerate(names)
    ]
    with tempfile.TemporaryDirectory() as folder:
        write_tar(Path(folder) / "web/a.tar", members, mode)
        listed = Listed(Path(folder), tasks=("caption",))
    # The samples as webdataset makes them: neighbours with the same key.
    samples: list[tuple[str, dict[str, bytes]]] = []
    for name, data in members:
        match = MEMBER.match(name)
        if match is None:
            continue
        if not samples or samples[-1][0] != match[1]:
            samples.append((match[1], {}))
        samples[-1][1][match[2].lower()] = data
    complete = [
        (key.removeprefix("./"), sample)
        for key, sample in samples
        if len({"jpg", "png"} & set(sample)) == 1 and "txt" in sample
    ]
    expected = [
        (f"web/a/{key}#caption.en", next(sample[e] for e in ("jpg", "png") if e in sample))
        for key, sample in complete
    ]
    assert sorted((item.id, listed.pixels[item.id]) for item in listed.items) == sorted(expected)
    # Pictures that are in no record.
    used = {item.media[0].member for item in listed.items}
    named = " ".join(f"{r.id} {r.reason} {r.source}" for r in listed.rejects)
    for name, _ in members:
        match = MEMBER.match(name)
        if name in used or not match:
            continue
        key, extension = match[1].removeprefix("./"), match[2].lower()
        is_accounted = f".{extension}, which no sample uses" in " ".join(
            o.reason for o in listed.omissions
        )
        in_record = any(f"/{key}#" in item.id for item in listed.items)
        assert is_accounted or in_record or f"/{key}" in named, name
    hidden = [name for name in names if name.rpartition("/")[2].startswith(".")]
    told = [o.num for o in listed.omissions if o.reason.startswith("hidden members")]
    assert sum(told) == len(hidden)


def test_the_captioned_picture_is_the_one_of_the_whole_extension(tmp_path):
    members = [("0.depth.png", picture(1)), ("0.jpg", picture(2, "JPEG")), ("0.txt", b"red")]
    write_tar(tmp_path / "web/d.tar", members)
    listed = Listed(tmp_path)
    assert listed.pixels == {"web/d/0#caption.en": picture(2, "JPEG")}
    reason = "members .depth.png, which no sample uses"
    assert listed.omissions == {
        Omission(source="web/d.tar", reason=reason, num=1, example="0.depth.png")
    }


def test_pictures_of_keys_with_dots_are_named(tmp_path):
    names = [f"shot.{n}.{extension}" for n in (1, 2) for extension in ("jpg", "txt")]
    write_tar(tmp_path / "web/d.tar", [(name, picture(1)) for name in names])
    listed = Listed(tmp_path)
    assert not listed.items
    assert set(listed.reasons) == {"web/d/shot.1.jpg", "web/d/shot.2.jpg"}
    assert all("a key ends at the first dot" in reason for reason in listed.reasons.values())


def test_two_pictures_of_one_sample_are_not_chosen_from(tmp_path):
    members = [("0.jpg", picture(1, "JPEG")), ("0.png", picture(2)), ("0.txt", b"which?")]
    write_tar(tmp_path / "web/d.tar", members)
    listed = Listed(tmp_path)
    assert listed.reasons == {"web/d/0": "2 images among .jpg, .png, .txt, one is expected"}


def sparse_member(name: str, pieces: list[tuple[int, bytes]], size: int) -> bytes:
    """Returns the header and the blocks of a sparse member, as GNU tar writes it with -S."""
    info = tarfile.TarInfo(name)
    info.type = tarfile.GNUTYPE_SPARSE
    info.size = sum(len(data) for _, data in pieces)
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    for number, (offset, data) in enumerate(pieces):
        start = 386 + 24 * number
        header[start : start + 24] = b"%011o\0%011o\0" % (offset, len(data))
    header[483:495] = b"%011o\0" % size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    stored = b"".join(data for _, data in pieces)
    return bytes(header) + stored + bytes(-len(stored) % 512)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.binary(min_size=512, max_size=512)), max_size=3),
    st.integers(1, 3),
    st.booleans(),
)
def test_sparse_members_have_their_own_bytes(parts, hole, packed):
    pieces, position = [], 0
    for gap, data in parts:
        position += gap * 512
        pieces.append((position, data))
        position += len(data)
    whole = bytearray(position + hole * 512)
    for offset, data in pieces:
        whole[offset : offset + len(data)] = data
    pieces.append((len(whole), b""))
    rest = io.BytesIO()
    with tarfile.open(fileobj=rest, mode="w") as archive:
        for name, data in (("0.txt", b"holes"), ("1.png", picture(7)), ("1.txt", b"next")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    data = sparse_member("0.bmp", pieces, len(whole)) + rest.getvalue()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "web").mkdir()
        (Path(folder) / "web/a.tar").write_bytes(gzip.compress(data) if packed else data)
        listed = Listed(Path(folder))
    assert listed.pixels == {
        "web/a/0#caption.en": bytes(whole),
        "web/a/1#caption.en": picture(7),
    }


def link(name: str, target: str, kind: bytes = tarfile.LNKTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_links_within_an_archive_are_followed(tmp_path, mode):
    members = [
        ("f/0.png", picture(1)),
        ("f/0.txt", b"first"),
        link("f/1.png", "f/0.png"),
        ("f/1.txt", b"again"),
        ("f/2.png", picture(2)),
        link("f/2.txt", "./f/0.txt"),
        link("f/3.png", "0.png", tarfile.SYMTYPE),
        link("f/3.txt", "f/2.txt"),
        link("f/4.png", "f/9.png"),
        ("f/4.txt", b"later"),
        link("f/5.png", "../../etc/x.png", tarfile.SYMTYPE),
        ("f/5.txt", b"outside"),
        ("f/9.png", picture(9)),
        ("f/9.txt", b"last"),
    ]
    write_tar(tmp_path / "web/a.tar", members, mode)
    listed = Listed(tmp_path)
    told = {i.id[8:9]: (i.suffixes[0], listed.pixels[i.id]) for i in listed.items}
    assert told == {
        "0": ("first", picture(1)),
        "1": ("again", picture(1)),
        "2": ("first", picture(2)),
        "3": ("first", picture(1)),
        "9": ("last", picture(9)),
    }
    assert {name: why.partition(",")[0] for name, why in listed.reasons.items()} == {
        "web/a/f/4": "f/4.png is a hard link to f/9.png",
        "web/a/f/5": "f/5.png is a symbolic link to ../../etc/x.png",
    }


# The same content in several containers.

WORDS = st.text("abc Ä\n", min_size=1, max_size=9).filter(str.strip)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "caption": st.one_of(WORDS, st.lists(WORDS, min_size=1, max_size=3)),
        "LANGUAGE": st.sampled_from(["de", "en"]),
        "captions": st.dictionaries(st.sampled_from(["fr", "it"]), WORDS, min_size=1),
        "qa": st.lists(
            st.fixed_dictionaries({"question": WORDS, "answer": WORDS}), min_size=1, max_size=3
        ),
    },
)
CELLS = st.sampled_from(["bytes", "struct", "struct of path", "list", "list of path", "path"])


@settings(deadline=None, max_examples=40)
@given(FIELDS, CELLS, st.booleans())
def test_the_same_content_is_read_alike_in_every_container(fields, cell, marked):
    data, mark = picture(5), MARK if marked else b""
    cells = {
        "bytes": data,
        "struct": {"bytes": data, "path": "gone.png"},
        "struct of path": {"bytes": None, "path": "p.png"},
        "list": [{"bytes": data, "path": None}],
        "list of path": ["p.png"],
        "path": "p.png",
    }
    line = json.dumps({**fields, "image": "p.png"}).encode()
    packings = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "web").mkdir()
        (root / "web/p.png").write_bytes(data)
        member = mark + json.dumps(fields).encode()
        write_tar(root / "web/t.tar", [("0.png", data), ("0.json", member)])
        for packing, pack in packings.items():
            (root / f"web/l.jsonl{packing}").write_bytes(pack(mark + line))
        parquet.write_table(
            pa.Table.from_pylist([{**fields, "image": cells[cell]}]), root / "web/q.parquet"
        )
        listed = Listed(root, per_task=9)
        assert set(listed.pixels.values()) <= {data}
    told: dict[str, set] = {}
    for item in listed.items:
        key = item.id.split("#")[0].removesuffix("/000000000")
        told.setdefault(key, set()).add((item.task, item.prefix, item.suffixes, item.lang))
    containers = ["web/t/0", "web/q.parquet", *(f"web/l.jsonl{packing}" for packing in packings)]
    first = told.get("web/t/0")
    assert [told.get(container) for container in containers] == [first] * len(containers)
    assert (first is None) == (not set(fields) - {"LANGUAGE"})


def test_marks_are_no_part_of_captions(tmp_path):
    members = [("0.png", picture(1)), ("0.txt", MARK + b"a red thing")]
    write_tar(tmp_path / "web/b.tar", members)
    (tmp_path / "web/a.png").write_bytes(picture(2))
    (tmp_path / "web/t.tsv").write_bytes(MARK + b"a red barn\ta.png\n" + MARK + b"next\ta.png\n")
    captions = {item.suffixes[0] for item in Listed(tmp_path).items}
    assert captions == {"a red thing", "a red barn", "next"}


def test_cells_that_hold_no_picture_are_named(tmp_path):
    rows = [{"image": 5, "text": "x"}, {"image": {"url": "u"}, "text": "x"}, {"text": "x"}]
    write_rows(tmp_path, rows)
    reasons = list(Listed(tmp_path).reasons.values())
    assert all("image must be" in reason for reason in reasons[:2])
    assert "got 5" in reasons[0]
    assert reasons[2] == "no image among the fields text"


# Everything that looks like data.

READ = (".tar", ".TAR", ".tgz", ".tar.bz2", ".tar.xz", ".jsonl", ".JSONL", ".ndjson", ".tsv")
PACKED = (".jsonl.gz", ".ndjson.xz", ".tsv.bz2", ".TSV.GZ")
NOT_READ = (".zip", ".tar.zst", ".jsonl.zst", ".csv", ".json", ".arrow", ".Tar", ".npz", ".7z")


def file_of(suffix: str) -> bytes:
    name = suffix.lower()
    if ".t" in name and "tsv" not in name:
        buffer = io.BytesIO()
        mode = {".tgz": "w:gz", ".tar.bz2": "w:bz2", ".tar.xz": "w:xz"}.get(name, "w")
        with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
            for member, data in (("0.png", picture(1)), ("0.txt", b"x")):
                info = tarfile.TarInfo(member)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return buffer.getvalue()
    line = b"x\ta.png\n" if "tsv" in name else b'{"image": "a.png", "text": "x"}\n'
    pack = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    return pack.get(name.rpartition(".")[2], bytes)(line)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.sampled_from((*READ, *PACKED)), unique=True, min_size=1),
    st.lists(st.sampled_from((*READ, *NOT_READ)), unique=True),
    st.lists(st.sampled_from((*READ, *NOT_READ)), unique=True),
)
def test_every_file_that_looks_like_data_is_read_or_named(full, others, hidden):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "web").mkdir()
        (root / "web/a.png").write_bytes(picture(1))
        for number, suffix in enumerate(full):
            (root / f"web/f{number}{suffix}").write_bytes(file_of(suffix))
        for number, suffix in enumerate(others):
            is_tar = suffix.startswith((".tar", ".TAR", ".tgz")) and suffix in READ
            (root / f"web/o{number}{suffix}").write_bytes(bytes(10240) if is_tar else b"")
        for number, suffix in enumerate(hidden):
            (root / f"web/._h{number}{suffix}").write_bytes(b"of a Mac")
        listed = Listed(root)
    assert len(listed.items) == len(full)
    named = {omission.source for omission in listed.omissions}
    rejected = {reject.source for reject in listed.rejects}
    for number, suffix in enumerate(others):
        assert f"web/o{number}{suffix}" in named | rejected
    for number, suffix in enumerate(hidden):
        assert f"web/._h{number}{suffix}" in named
    assert not any(source.startswith("web/f") for source in named)


def test_fields_that_are_in_no_item_are_named_whatever_the_container(tmp_path):
    fields = {"caption": "red", "alt_text": "lost?", "text": "another", "LANGUAGE": "de"}
    metadata = {**fields, "key": "0", "status": "success", "exif": "{}", "TEXT": " red "}
    write_tar(tmp_path / "web/t.tar", [("0.png", picture(1)), ("0.json", json.dumps(metadata))])
    write_rows(tmp_path, [{**metadata, "image": "a.png"}], "web/l.jsonl")
    table = pa.Table.from_pylist([{**metadata, "image": picture(1)}])
    parquet.write_table(table, tmp_path / "web/q.parquet")
    listed = Listed(tmp_path)
    assert {item.suffixes for item in listed.items} == {("red",)}
    for name in ("t.tar", "l.jsonl", "q.parquet"):
        assert {(o.reason, o.num) for o in listed.omissions if o.source == f"web/{name}"} == {
            ("field alt_text, which web does not read", 1),
            ("field text: another caption than the one that is read", 1),
        }


def test_fields_without_end_are_counted_together(tmp_path):
    rows = [{"image": "a.png", "caption": "x", f"field {number}": number} for number in range(200)]
    write_rows(tmp_path, rows)
    omissions = Listed(tmp_path).omissions
    assert sum(omission.num for omission in omissions) == 200
    assert max((o.num, o.reason) for o in omissions) == (136, "further fields")


@settings(deadline=None, max_examples=25)
@given(st.dictionaries(st.sampled_from(["en", "de"]), WORDS, min_size=1), WORDS, WORDS)
def test_of_two_captions_in_one_language_the_other_is_named(captions, own, member):
    row = {"caption": own, "captions": captions}
    with tempfile.TemporaryDirectory() as folder:
        members = [("0.png", picture(1)), ("0.txt", member), ("0.json", json.dumps(row))]
        write_tar(Path(folder) / "web/t.tar", members)
        listed = Listed(Path(folder), per_task=9)
    # The member comes before the field, and `captions` before both.
    english = {text for item in listed.items if item.lang == "en" for text in item.suffixes}
    assert english == {" ".join(captions.get("en", member).split())}
    expected = set()
    if own.split() != member.split():
        expected.add("field caption: another caption than the one that is read")
    if member.split() != captions.get("en", member).split():
        expected.add("a caption beside another one of its language in captions, which is read")
    assert {omission.reason for omission in listed.omissions} == expected


def test_a_text_is_the_same_in_a_member_and_in_a_row(tmp_path):
    text = "\0a\0b\x7f\u2028c"
    write_tar(tmp_path / "web/t.tar", [("0.png", picture(1)), ("0.txt", text)])
    write_rows(tmp_path, [{"image": "a.png", "caption": text}], "web/l.jsonl")
    (read,) = {item.suffixes[0] for item in Listed(tmp_path).items}
    assert read == "\0a\0b\x7f c"


def test_pictures_that_no_list_can_name_are_named(tmp_path):
    write_tar(tmp_path / "web/a.tar", [("0.png", picture(1)), ("0.txt", b"x")])
    (tmp_path / "web/b.png").write_bytes(picture(2))
    assert [o.source for o in Listed(tmp_path).omissions] == ["web/b.png"]


@pytest.mark.parametrize("form", ["jsonl", "csv", "tsv", "parquet", "arrow", "jsonl.gz"])
def test_pictures_that_no_row_names_are_named(tmp_path, form):
    # By a path, by one that goes up, by a URL, by a row that is a reject for its
    # caption; the last two pictures are named by no row.
    names = ["images/a.png", "b.png", "x/../c.png", "http://x.org/d.png", "images/e.png"]
    for name in (
        "images/a.png",
        "b.png",
        "c.png",
        "images/d.png",
        "images/e.png",
        "f.png",
        "g.MP4",
    ):
        (tmp_path / "web" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "web" / name).write_bytes(picture(1))
    captions = ["x", "x", "x", "x", "" if form == "tsv" else None]
    rows = [{"image": n, "caption": c} for n, c in zip(names, captions, strict=True)]
    path, table = tmp_path / f"web/l.{form}", pa.Table.from_pylist(rows)
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    if form == "parquet":
        parquet.write_table(table, path)
    elif form == "arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    elif form == "csv":
        path.write_text(
            "image,caption\n" + "".join(f"{r['image']},{r['caption'] or ''}\n" for r in rows)
        )
    elif form == "tsv":
        path.write_text("".join(f"{row['caption']}\t{row['image']}\n" for row in rows))
    else:
        path.write_bytes(gzip.compress(lines.encode()) if form.endswith("gz") else lines.encode())
    listed = Listed(tmp_path)
    assert len(listed.items) == 4
    assert {(o.source, o.reason) for o in listed.omissions} == {
        ("web/f.png", "no list names this file"),
        ("web/g.MP4", "no list names this file"),
    }


def test_pictures_that_no_own_row_names_are_named(tmp_path):
    # The rows of every split count, those of both forms, packed, and rejects.
    write_rows(tmp_path, [OWN, {"image": ["b.png", "c.png"], "answers": None}], "jsonl/train.jsonl")
    table = b"video,question,answers\nd/e.mp4,q,a\n"
    (tmp_path / "jsonl/val.csv.gz").write_bytes(gzip.compress(table))
    (tmp_path / "jsonl/d").mkdir()
    for name in ("b.png", "c.png", "d/e.mp4", "d/f.png", "d/.g.png"):
        (tmp_path / "jsonl" / name).write_bytes(picture(1))
    assert [o.source for o in Listed(tmp_path, "jsonl").omissions] == ["jsonl/d/f.png"]


def test_what_img2dataset_writes_beside_archives_is_no_data_of_its_own(tmp_path):
    write_tar(tmp_path / "web/00000.tar", [("0.png", picture(1)), ("0.txt", b"x")])
    (tmp_path / "web/00000_stats.json").write_text("{}")
    parquet.write_table(pa.table({"url": ["u"]}), tmp_path / "web/00000.parquet")
    assert not Listed(tmp_path).omissions


def test_packed_lists_of_nothing_are_empty_files(tmp_path):
    write_rows(tmp_path, [{"image": "a.png", "text": "x"}])
    for suffix, pack in ((".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)):
        (tmp_path / f"web/e.jsonl{suffix}").write_bytes(pack(b""))
    listed = Listed(tmp_path)
    assert (len(listed.items), listed.rejects) == (1, [])
    assert [o.source[-3:] for o in sorted(listed.omissions)] == ["bz2", ".gz", ".xz"]


def test_damaged_packed_lists_are_rejects(tmp_path):
    whole = gzip.compress(b'{"image": "a.png", "text": "x"}\n' * 2000)
    (tmp_path / "web").mkdir()
    (tmp_path / "web/a.png").write_bytes(picture(1))
    (tmp_path / "web/l.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    listed = Listed(tmp_path)
    assert "l.jsonl.gz is damaged" in listed.reasons["web/l.jsonl.gz"]


def test_own_rows_are_read_packed_and_name_the_files_beside(tmp_path):
    write_rows(tmp_path, [OWN], "jsonl/val.jsonl")
    (tmp_path / "jsonl/train.jsonl.xz").write_bytes(lzma.compress(json.dumps(OWN).encode()))
    (tmp_path / "jsonl/train.JSONL").write_text("")
    (tmp_path / "jsonl/train.jsonl.zst").write_text("")
    listed = Listed(tmp_path, "jsonl")
    assert len(listed.items) == 1
    assert {o.source for o in listed.omissions} == {
        "jsonl/train.JSONL",
        "jsonl/train.jsonl.zst",
    }
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv/a.png").write_bytes(picture(1))
    table = MARK + "image,question,answers\na.png,wer?,Ä\n".encode()
    (tmp_path / "csv/train.csv.gz").write_bytes(gzip.compress(table))
    assert Listed(tmp_path, "csv").items[0].answers == ("Ä",)


def test_one_file_under_two_names_is_no_other_file(tmp_path):
    write_rows(tmp_path, [OWN], "jsonl/train.jsonl")
    again = tmp_path / "jsonl/train.JSONL"
    if not again.exists():  # A disk that ignores capitals has it already.
        again.hardlink_to(tmp_path / "jsonl/train.jsonl")
    listed = Listed(tmp_path, "jsonl")
    assert (len(listed.items), listed.omissions) == (1, set())


def test_sidecars_of_raw_files_are_named(tmp_path):
    (tmp_path / "images").mkdir()
    for name in ("a.png", "a.txt", "._a.png"):
        (tmp_path / "images" / name).write_bytes(picture(1))
    listed = Listed(tmp_path, "images")
    (tmp_path / "images/b").mkdir()
    for number in range(1000):
        (tmp_path / f"images/b/{number:03}.json").touch()
    listed = Listed(tmp_path, "images")
    assert [item.id for item in listed.items] == ["images/a.png"]
    assert {(o.source, o.reason, o.num, o.example) for o in listed.omissions} == {
        ("images", "texts beside media (.txt)", 1, "a.txt"),
        ("images", "texts beside media (.json)", 1000, "b/000.json"),
        ("images", "hidden files", 1, "._a.png"),
    }


NAN = [math.nan]
WORD_FEATURES = {"image": "image", "caption": "text", "lang": "lang", "licence": "terms"}


@settings(deadline=None, max_examples=25)
@given(st.sampled_from([None, NAN, [math.nan, math.nan]]), st.sampled_from([None, NAN]))
def test_nan_in_a_feature_is_a_missing_feature(text, lang):
    readings = []
    for of_text, of_lang in ((text, lang), (None, None)):
        with tempfile.TemporaryDirectory() as folder:
            example = Example()
            example.features.feature["image"].bytes_list.value.append(picture(4))
            for name, numbers in (("text", of_text), ("lang", of_lang), ("terms", of_lang)):
                example.features.feature[name].float_list.value.extend(numbers or [])
            write_shard(Path(folder) / "a.tfrecord", [example.SerializeToString()])
            (Path(folder) / "a.idx").unlink()
            corpus = Corpus(folder, ".", UnpackedMedia(), features=WORD_FEATURES)
            unit = source_spec("tfrecord").list_unit
            assert unit is not None
            readings.append(list(unit(corpus, "a.tfrecord")))
    assert readings[0] == readings[1]
    assert [result.reason for result in readings[0]] == ["no caption or annotation"]


def test_captions_of_two_features_are_read_as_those_of_two_fields(tmp_path):
    captions = {"en": "dog", "de": "Hund"}
    write_rows(tmp_path, [{"image": "a.png", "caption": "cat", "captions": captions}])
    example = Example()
    values = {"image": picture(9), "text": b"cat", "more": json.dumps(captions).encode()}
    for name, value in values.items():
        example.features.feature[name].bytes_list.value.append(value)
    (tmp_path / "tfrecord").mkdir()
    write_shard(tmp_path / "tfrecord/a.tfrecord", [example.SerializeToString()])
    (tmp_path / "tfrecord/a.idx").unlink()
    features = {"image": "image", "caption": "text", "captions": "more"}
    rows = Listed(tmp_path, per_task=9)
    records = Listed(tmp_path, "tfrecord", features=features, per_task=9)
    assert rows.texts() == records.texts()
    assert {o.reason for o in rows.omissions} == {o.reason for o in records.omissions}


@pytest.mark.parametrize(("field", "name"), [("caption", "text"), ("lang", "lang")])
def test_a_number_in_a_feature_is_no_caption(tmp_path, field, name):
    features = {"image": "image", "caption": "text"} | {field: name}
    example = Example()
    example.features.feature["image"].bytes_list.value.append(picture(4))
    example.features.feature["text"].bytes_list.value.append(b"red")
    if field == "caption":
        example.features.feature["text"].int64_list.value.append(3)
    else:
        example.features.feature["lang"].float_list.value.append(3.5)
    (tmp_path / "tfrecord").mkdir()
    write_shard(tmp_path / "tfrecord/a.tfrecord", [example.SerializeToString()])
    (tmp_path / "tfrecord/a.idx").unlink()
    listed = Listed(tmp_path, "tfrecord", features=features)
    value = 3 if field == "caption" else 3.5
    assert list(listed.reasons.values()) == [f"{name} must be a text, got {value}"]


def test_packed_records_are_read_and_features_without_a_field_are_named(tmp_path):
    features = {"image": "image", "caption": "suffix", "question": "nothing"}
    for number, pack in enumerate((bytes, gzip.compress, bz2.compress, lzma.compress)):
        record = Record(
            id=f"r{number}",
            images=(picture(number),),
            prefix="p",
            suffixes=("a", "\ufeffb"),
            task="t",
            source="s",
            source_sha256="0",
        )
        path = tmp_path / f"tfrecord/{number}.tfrecord"
        path.parent.mkdir(exist_ok=True)
        write_shard(path, [encode_example(record)])
        path.with_suffix(".idx").unlink()
        path.write_bytes(pack(path.read_bytes()))
    (tmp_path / "tfrecord/rest.tar").touch()
    (tmp_path / "tfrecord/empty.tfrecord").touch()
    listed = Listed(tmp_path, "tfrecord", features=features)
    assert [item.suffixes for item in listed.items] == [("a", "b")] * 4
    assert sorted(listed.pixels.values()) == sorted(map(picture, range(4)))
    told = {(o.source, o.reason, o.num) for o in listed.omissions}
    for number in range(4):
        source = f"tfrecord/{number}.tfrecord"
        assert (source, "feature prefix, which no field of features names", 1) in told
        reason = "feature nothing, which features.question names: no record has it"
        assert (source, reason, 1) in told
        assert not any("feature image" in reason or "suffix" in reason for _, reason, _ in told)
    assert ("tfrecord/empty.tfrecord", "empty file", 1) in told
    assert ("tfrecord/rest.tar", "no kind of file that tfrecord reads", 1) in told


def ragged_example(questions: list[str], answers: list[list[str]], depth: int = 0) -> bytes:
    """Returns a record as TensorFlow Datasets 4.9 writes a sequence of sequences."""
    example = Example()
    feature = example.features.feature
    feature["image"].bytes_list.value.append(picture(4))
    feature["qa/question"].bytes_list.value.extend(map(str.encode, questions))
    flat = [answer.encode() for listed in answers for answer in listed]
    feature["qa/answers/ragged_flat_values"].bytes_list.value.extend(flat)
    for level in range(depth + 1):
        lengths = feature[f"qa/answers/ragged_row_lengths_{level}"].int64_list.value
        lengths.extend(map(len, answers))
    return example.SerializeToString()


@settings(deadline=None, max_examples=25)
@given(st.lists(st.lists(st.sampled_from(["yes", "no", "red"]), max_size=3), max_size=4))
def test_every_question_has_its_own_answers(answers):
    questions = [f"question {number}?" for number in range(len(answers))]
    features = {"image": "image", "question": "qa/question", "answer": "qa/answers"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tfrecord/a.tfrecord"
        path.parent.mkdir()
        records = [ragged_example(questions, answers), ragged_example(["q"], [["a"]], depth=1)]
        write_shard(path, records)
        path.with_suffix(".idx").unlink()
        listed = Listed(Path(folder), "tfrecord", features=features, per_task=9, tasks=("vqa",))
    key = "tfrecord/a.tfrecord/000000000#vqa"
    assert {item.id: (item.prefix[10:], item.answers) for item in listed.items} == {
        f"{key}.{number}": (questions[number], tuple(listed_answers))
        for number, listed_answers in enumerate(answers)
        if listed_answers
    }
    without = {f"{key}.{number}" for number, of in enumerate(answers) if not of}
    assert set(listed.reasons) == without | ({key} if not answers else set()) | {
        "tfrecord/a.tfrecord/000000001"
    }
