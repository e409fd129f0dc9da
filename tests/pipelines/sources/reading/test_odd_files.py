"""Archives, lists and folders as strangers leave them: each is read, refused or in the account."""

import bz2
import codecs
import gzip
import io
import json
import lzma
import os
import re
import tarfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.records.schema import BadInput
from pipelines.records.tfrecord import write_shard
from pipelines.sources.reading.item import Media
from pipelines.sources.reading.media_reader import MediaReader
from pipelines.sources.reading.omissions import looks_like_data
from tests.pipelines.sources.reading.test_odd_inputs import Listed, picture, write_rows, write_tar

ROW = {"image": "a.png", "question": "what?", "answers": ["red"]}


# Members.


@pytest.mark.parametrize("extension", ["png", "txt", "json"])
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_two_members_of_one_name_are_not_chosen_from(tmp_path, extension, mode):
    members = [("0.png", picture(1)), ("0.txt", b"a"), ("0.json", b"{}")]
    again = {"png": picture(2), "txt": b"b", "json": b'{"caption": "c"}'}
    members.append((f"0.{extension}", again[extension]))
    write_tar(tmp_path / "web/a.tar", [*members, ("1.png", picture(3)), ("1.txt", b"next")], mode)
    listed = Listed(tmp_path)
    assert listed.reasons == {"web/a/0": f"2 members .{extension}, one is expected"}
    assert [item.id for item in listed.items] == ["web/a/1#caption.en"]


def test_captions_of_two_members_must_be_the_same(tmp_path):
    members = [
        *(("0.png", picture(1)), ("0.txt", b"red"), ("0.caption", b" red\n")),
        *(("1.png", picture(2)), ("1.txt", b"red"), ("1.caption", b"blue")),
        *(("2.png", picture(3)), ("2.txt", b" "), ("2.caption", b"blue")),
    ]
    write_tar(tmp_path / "web/a.tar", members)
    listed = Listed(tmp_path)
    assert [item.suffixes[0] for item in listed.items] == ["red", "blue"]
    assert listed.reasons == {
        "web/a/1": "different captions in .png, .txt, .caption: 'red', 'blue'"
    }


def test_a_member_of_null_is_no_member(tmp_path):
    members = [("0.png", picture(1)), ("0.json", b"null"), ("0.txt", b"red")]
    write_tar(tmp_path / "web/a.tar", members)
    listed = Listed(tmp_path)
    assert ([item.suffixes for item in listed.items], listed.rejects) == ([("red",)], [])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "it begins with b'version https://git"),
        (b"<!DOCTYPE html>" * 99, "no archive: it begins with b'<!DOCTYPE html>"),
        (b"PK\3\4" + bytes(999), "no archive: it begins with b'PK"),
    ],
)
def test_a_file_that_is_no_archive_says_what_it_begins_with(tmp_path, data, reason):
    write_tar(tmp_path / "web/a.tar", [("0.png", picture(1)), ("0.txt", b"x")])
    (tmp_path / "web/b.tar").write_bytes(data)
    listed = Listed(tmp_path)
    assert len(listed.items) == 1
    assert reason in listed.reasons["web/b"]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_and_foreign_names_are_whole(tmp_path, form):
    folder = "ü" * 90
    (tmp_path / "web").mkdir()
    (tmp_path / "0.png").write_bytes(picture(1))
    (tmp_path / "0.txt").write_bytes(b"x")
    headers = {"comment": "global"} if form == tarfile.PAX_FORMAT else None
    with tarfile.open(tmp_path / "web/a.tar", "w", format=form, pax_headers=headers) as archive:
        for name in ("0.png", "0.txt"):
            archive.add(tmp_path / name, f"{folder}/{name}")
    listed = Listed(tmp_path)
    assert listed.pixels == {f"web/a/{folder}/0#caption.en": picture(1)}
    assert not listed.omissions


# Own lists.


PACKINGS = {
    "gz": (gzip.compress, lambda: zlib.decompressobj(wbits=31)),
    "xz": (lzma.compress, lzma.LZMADecompressor),
    "bz2": (lambda data: bz2.compress(data, 1), bz2.BZ2Decompressor),
}


@pytest.mark.parametrize(
    ("form", "suffix", "encoding"),
    [
        *(("jsonl", "gz", "utf-8"), ("csv", "xz", "utf-8"), ("web", "bz2", "utf-8")),
        *(("jsonl", "gz", "utf-16"), ("csv", "bz2", "utf-16"), ("web", "xz", "utf-16")),
    ],
)
def test_a_list_that_is_cut_off_gives_all_whole_rows_before_the_cut(
    tmp_path, form, suffix, encoding
):
    pack, opener = PACKINGS[suffix]
    rows = [{**ROW, "question": f"{n * 7919 % 1000} {n * 104729}?"} for n in range(4000)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if form == "csv":
        cells = "".join(f"a.png,{row['question']},red\n" for row in rows)
        text = f"image,question,answers\n{cells}"
    elif form == "web":
        text = "".join(f'{{"image": "a.png", "caption": "{row["question"]}"}}\n' for row in rows)
    name = "web/train.jsonl" if form == "web" else f"{form}/train.{form}"
    write_rows(tmp_path, [], f"{form}/train.x")
    cut = pack(text.encode(encoding))
    cut = cut[: len(cut) * 4 // 5]
    (tmp_path / f"{name}.{suffix}").write_bytes(cut)
    # What the library unpacks of the cut file, as far as its lines are whole.
    left = codecs.getincrementaldecoder(encoding)().decode(opener().decompress(cut))
    num_rows = left.count("\n") - (form == "csv")
    listed = Listed(tmp_path, form)
    assert 0 < len(listed.items) == num_rows < 4000
    (reason,) = listed.reasons.values()
    file = f"train.{name.rpartition('.')[2]}.{suffix}"
    assert re.match(rf"{re.escape(file)} .* {num_rows:,} whole rows", reason)


@pytest.mark.parametrize(("form", "text"), [("jsonl", "\n \n"), ("csv", "image,answers\n")])
def test_a_list_of_ones_own_without_rows_is_an_empty_file(tmp_path, form, text):
    write_rows(tmp_path, [], f"{form}/train.x")
    (tmp_path / f"{form}/train.{form}").write_text(text)
    listed = Listed(tmp_path, form)
    assert (listed.items, listed.rejects) == ([], [])
    assert {(o.source, o.reason) for o in listed.omissions} == {
        (f"{form}/train.{form}", "empty file"),
        (f"{form}/a.png", "no list names this file"),
    }


def test_a_list_in_another_form_is_named(tmp_path):
    write_rows(tmp_path, [ROW], "jsonl/train.jsonl")
    for name in ("train.csv", "train.jsonl~", "train.parquet", "val.csv"):
        (tmp_path / "jsonl" / name).write_text("x")
    os.symlink("nowhere", tmp_path / "jsonl/train.ndjson")
    listed = Listed(tmp_path, "jsonl")
    reason = "no kind of file that jsonl reads"
    assert {(o.source, o.reason) for o in listed.omissions} == {
        ("jsonl/train.csv", reason),
        ("jsonl/train.jsonl~", reason),
        ("jsonl/train.parquet", reason),
        ("jsonl/train.ndjson", "link to a missing file"),
    }


# Folders.


def test_what_no_reader_can_follow_is_in_the_account(tmp_path):
    write_tar(tmp_path / "web/a.tar", [("0.png", picture(1)), ("0.txt", b"x")])
    write_tar(tmp_path / "beside/b.tar", [("0.png", picture(2)), ("0.txt", b"y")])
    os.symlink(tmp_path / "beside", tmp_path / "web/linked")
    os.symlink(tmp_path / "beside/b.tar", tmp_path / "web/c.tar")
    os.symlink("nowhere", tmp_path / "web/d.tar")
    os.symlink("e.jsonl", tmp_path / "web/e.jsonl")
    os.mkfifo(tmp_path / "web/f.jsonl")
    listed = Listed(tmp_path)
    assert {item.id.split("#")[0] for item in listed.items} == {"web/a/0", "web/c/0"}
    assert {(o.source, o.reason) for o in listed.omissions} == {
        ("web/linked", "link to a folder, which is not followed"),
        ("web/d.tar", "link to a missing file"),
        ("web/e.jsonl", "link to a missing file"),
        ("web/f.jsonl", "neither a file nor a folder"),
    }


@pytest.mark.parametrize("source", ["web", "images", "tfrecord"])
def test_a_name_that_is_not_utf_8_ends_no_run(tmp_path, source):
    (tmp_path / source / "b").mkdir(parents=True)
    for name in (b"\xfc.tar", b"b/\xfc.png", b"\xfc.tfrecord"):
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path / source), name))).write_bytes(b"x")
    Path(os.fsdecode(os.fsencode(tmp_path / source) + b"/d\xfc")).mkdir()
    write_tar(tmp_path / "web/a.tar", [("0.png", picture(1)), ("0.txt", b"x")])
    (tmp_path / "images").mkdir(exist_ok=True)
    (tmp_path / "images/a.png").write_bytes(picture(1))
    if source == "tfrecord":
        write_shard(tmp_path / "tfrecord/a.tfrecord", [])
    listed = Listed(tmp_path, source, features={"image": "image"})
    assert len(listed.items) == (0 if source == "tfrecord" else 1)
    renamed = {o.source for o in listed.omissions if o.reason == "name is not UTF-8; rename it"}
    assert renamed == {
        rf"{source}/\udcfc.tar",
        rf"{source}/\udcfc.tfrecord",
        rf"{source}/b/\udcfc.png",
        rf"{source}/d\udcfc",
    }


def test_an_unused_member_whose_name_is_not_utf_8_is_in_the_account(tmp_path):
    (tmp_path / "web").mkdir()
    with tarfile.open(
        tmp_path / "web/a.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1"
    ) as archive:
        for name, data in (("0.png", picture(1)), ("0.ü", b"z"), ("0.txt", b"x")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    listed = Listed(tmp_path)
    assert len(listed.items) == 1
    assert [o.to_json().encode().count(rb"\\udcfc") for o in listed.omissions] == [2]


@given(
    st.sampled_from(["jsonl", "tar", "parquet", "tfrecord", "csv", "ods", "jsonlines", "mat"]),
    st.sampled_from(["", "~", ".bak", ".part", "-00000-of-00002", "_old", ".gz", ".001"]),
    st.booleans(),
)
def test_a_copy_of_data_looks_like_data(extension, rest, capitals):
    name = f"a.{extension}{rest}"
    assert looks_like_data(name.upper() if capitals else name)
    assert not looks_like_data(f"a{extension}{rest.replace('.gz', '')}.md")


@pytest.mark.parametrize("source", ["web", "jsonl"])
def test_pipes_and_devices_are_no_pictures(tmp_path, source):
    row = {"question": "?", "answers": ["x"]} if source == "jsonl" else {"caption": "x"}
    names = ["a.png", "pipe.png", "zero.png"]
    name = "jsonl/train.jsonl" if source == "jsonl" else "web/a.jsonl"
    write_rows(tmp_path, [{**row, "image": image} for image in names], name)
    os.mkfifo(tmp_path / source / "pipe.png")
    (tmp_path / source / "zero.png").symlink_to("/dev/zero")
    reader, reasons = MediaReader(tmp_path), []
    for image in names:
        for read in (reader.read, reader.sha256):
            try:
                read(Media(path=f"{source}/{image}"))
            except BadInput as error:
                reasons.append(str(error))
    assert reasons == [f"neither a file nor a folder: {name}" for name in names[1:] for _ in "12"]
    with (
        pytest.raises(BadInput, match=r"neither a file nor a folder: pipe\.png"),
        reader.local(Media(path=f"{source}/pipe.png", video=True)),
    ):
        pass


@pytest.mark.parametrize(
    ("suffix", "pack"), [("tgz", gzip.compress), ("tar.bz2", bz2.compress), ("txz", lzma.compress)]
)
def test_an_archive_packed_in_several_streams_is_read_to_its_end(tmp_path, suffix, pack):
    members = [
        (f"{n}.{end}", data) for n in range(3) for end, data in (("png", picture(n)), ("txt", b"x"))
    ]
    write_tar(tmp_path / "plain.tar", members)
    whole = (tmp_path / "plain.tar").read_bytes()
    (tmp_path / "web").mkdir()
    streams = b"".join(pack(whole[start : start + 999]) for start in range(0, len(whole), 999))
    (tmp_path / f"web/a.{suffix}").write_bytes(streams)
    listed = Listed(tmp_path)
    assert listed.pixels == {f"web/a/{n}#caption.en": picture(n) for n in range(3)}
    assert not listed.rejects


def test_lists_whose_names_are_like_the_splits_are_named(tmp_path):
    names = ["train-00001.jsonl", "train_part2.csv.gz", "Train.jsonl", "train.parquet"]
    write_rows(tmp_path, [ROW], "jsonl/train.jsonl")
    for name in (*names, "trainval.jsonl", "val.jsonl", "train-notes.txt"):
        if not (tmp_path / "jsonl" / name).exists():
            (tmp_path / "jsonl" / name).write_text("{}")
    listed = Listed(tmp_path, "jsonl")
    assert len(listed.items) == 1
    expected = {
        name
        for name in names
        if not (tmp_path / "jsonl" / name).samefile(tmp_path / "jsonl/train.jsonl")
    }
    assert {omission.source for omission in listed.omissions} == {f"jsonl/{n}" for n in expected}
    like, other = sorted({omission.reason for omission in listed.omissions})
    assert re.search(r"split train, .*train\.jsonl", like)
    assert other.endswith(" jsonl reads")


@pytest.mark.parametrize(
    "fields", [("image", "image_path"), ("image", "video"), ("path", "file_name")]
)
def test_different_files_of_one_row_are_not_chosen_from(tmp_path, fields):
    first, second = fields
    rows = [
        {first: "a.png", second: "b.png", "caption": "both"},
        {first: "a.png", second: "./a.png", "caption": "same"},
        {first: "a.png", second: "elsewhere/a.png", "caption": "first"},
        {first: "elsewhere/a.png", second: "b.png", "caption": "second"},
        {first: "http://x/a.png", second: "b.png", "caption": "here"},
    ]
    write_rows(tmp_path, rows)
    (tmp_path / "web/b.png").write_bytes(picture(1))
    listed = Listed(tmp_path)
    (reason,) = listed.reasons.values()
    assert reason.startswith("different files in the fields ")
    assert {item.suffixes[0]: item.media[0].path for item in listed.items} == {
        "same": "web/a.png",
        "first": "web/a.png",
        "second": "web/b.png",
        "here": "web/b.png",
    }
