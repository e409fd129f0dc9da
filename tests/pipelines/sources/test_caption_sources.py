"""Readers of captions: photographs, many languages, scene text, figures, screens."""

import bz2

import pytest

from tests.pipelines.sources.caption_layouts import (
    write_coco35l,
    write_cococap,
    write_nocaps,
    write_scicap,
    write_screen2words,
    write_textcaps,
    write_widgetcap,
    write_xm3600,
)
from tests.pipelines.sources.writing import put_text


def paths(items) -> list[str]:
    return [item.media[0].path for item in items]


def test_cococap_is_an_image_with_its_captions(tmp_path, read_source):
    write_cococap(tmp_path)
    items, rejects = read_source("cococap", "train+restval", tmp_path)
    assert [item.id for item in items] == [
        "cococap/train/COCO_train2014_000000000009.jpg#9",
        "cococap/restval/COCO_val2014_000000000025.jpg#25",
    ]
    assert (items[0].prefix, items[0].suffixes) == ("caption en", ("A red kite.", "Kites fly"))
    assert items[0].answers == items[0].suffixes
    assert paths(items) == [
        "cococap/train2014/COCO_train2014_000000000009.jpg",
        "cococap/val2014/COCO_val2014_000000000025.jpg",
    ]
    assert not rejects
    items, rejects = read_source("cococap", "val", tmp_path)
    assert len(items) == 1
    assert [(r.id, r.reason.partition(" among")[0]) for r in rejects] == [
        ("cococap/val/row-3", "malformed row: 'raw' is missing")
    ]


def test_blank_captions_are_no_captions(tmp_path, read_source):
    write_cococap(tmp_path)
    items, rejects = read_source("cococap", "test", tmp_path)
    assert [item.suffixes for item in items] == [("A bird.",)]
    assert [r.reason for r in rejects] == ["image 45 has no caption"]


def test_coco_images_may_be_shared(tmp_path, read_source):
    write_cococap(tmp_path)
    (tmp_path / "coco/images/val2014").mkdir(parents=True)
    items, _ = read_source("cococap", "val", tmp_path)
    assert paths(items) == ["coco/images/val2014/COCO_val2014_000000000042.jpg"]


def test_nocaps_has_ten_references_or_none(tmp_path, read_source):
    write_nocaps(tmp_path)
    items, rejects = read_source("nocaps", "val", tmp_path)
    assert [len(item.answers) for item in items] == [10]
    assert items[0].meta == {"image_id": 0, "domain": "near-domain"}
    assert paths(items) == ["nocaps/Images/validation/0013ea.jpg"]
    assert [r.reason for r in rejects] == ["image 1 has no caption"]
    items, rejects = read_source("nocaps", "test", tmp_path)
    assert [(i.answers, i.suffixes) for i in items] == [((), ("",))] * 2
    assert not rejects


def test_coco35l_is_an_image_in_one_language(tmp_path, read_source):
    write_coco35l(tmp_path)
    items, rejects = read_source("coco35l", "dev", tmp_path)
    assert [(i.id, i.lang, i.prefix, i.suffixes) for i in items] == [
        ("coco35l/dev/COCO_val2014_000000000042.jpg#de", "de", "caption de",
         ("Zwei Katzen sitzen", "Katzen")),
        ("coco35l/dev/COCO_val2014_000000000042.jpg#en", "en", "caption en",
         ("english 42_0", "english 42_1")),
        ("coco35l/dev/COCO_val2014_000000000042.jpg#sw", "sw", "caption sw", ("Paka wawili",)),
    ]  # fmt: skip
    assert [(r.id, r.reason.partition(" among")[0]) for r in rejects] == [
        ("coco35l/dev/row-3", "malformed row: 'translation_tokenized' is missing"),
        ("coco35l/dev_de/row-1", "image 77 is not in dataset_coco.json"),
        ("coco35l/dev_en/row-1", "image 77 is not in dataset_coco.json"),
    ]
    english, _ = read_source("coco35l", "dev_en", tmp_path)
    assert english == [items[1]]


def test_coco35l_may_be_packed(tmp_path, read_source):
    write_coco35l(tmp_path)
    plain = tmp_path / "coco35l/coco_mt_dev.jsonl"
    expected = read_source("coco35l", "dev_sw", tmp_path)[0]
    plain.with_suffix(".jsonl.bz2").write_bytes(bz2.compress(plain.read_bytes()))
    plain.unlink()
    assert read_source("coco35l", "dev_sw", tmp_path)[0] == expected != []


def test_xm3600_takes_raw_captions(tmp_path, read_source):
    write_xm3600(tmp_path)
    items, rejects = read_source("xm3600", "en", tmp_path)
    assert [(i.id, i.prefix, i.answers) for i in items] == [
        ("xm3600/en/00a1.jpg#en", "caption en", ("A Street.", "A town"))
    ]
    assert [r.reason for r in rejects] == ["caption must be a list of texts, got []"]
    items, _ = read_source("xm3600", "quz", tmp_path)
    assert (items[0].prefix, items[0].suffixes, items[0].lang) == ("caption quz", ("Ñan",), "quz")
    assert paths(items) == ["xm3600/images/00a1.jpg"]


def test_textcaps_is_learned_in_lower_case(tmp_path, read_source):
    write_textcaps(tmp_path)
    items, rejects = read_source("textcaps", "val", tmp_path)
    assert [item.suffixes for item in items] == [
        ("a sign that says stop", "red sign"),
        ("a bottle",),
    ]
    assert items[0].answers == ("A sign that says STOP", "Red sign")
    assert paths(items) == ["textcaps/train_images/a1.jpg", "textcaps/train_images/b2.jpg"]
    assert [r.reason.partition(" among")[0] for r in rejects] == [
        "malformed row: 'image_id' is missing"
    ]
    items, _ = read_source("textcaps", "test", tmp_path)
    assert (paths(items), items[0].answers) == (["textcaps/test_images/t.jpg"], ())


def test_scicap_reads_the_tokenised_caption(tmp_path, read_source):
    write_scicap(tmp_path)
    items, rejects = read_source("scicap", "train", tmp_path)
    assert [(i.id, i.prefix, i.suffixes) for i in items] == [
        ("scicap/train/1001.0001v1-Figure2-1.png#0", "caption en", ("loss over time .",))
    ]
    assert paths(items) == [
        "scicap/scicap_data/SciCap-No-Subfig-Img/train/1001.0001v1-Figure2-1.png"
    ]
    (reject,) = rejects
    assert reject.reason.endswith("SciCap-Caption-All/Train/1001.0002v1-Figure1-1.json is missing")


def test_scicap_names_stay_in_their_folder(tmp_path, read_source):
    write_scicap(tmp_path)
    lists = "List-of-Files-for-Each-Experiments/First-Sentence/No-Subfig/train/file_idx.json"
    put_text(tmp_path / "scicap/scicap_data" / lists, '["../../../../../etc/passwd.png"]')
    items, rejects = read_source("scicap", "train", tmp_path)
    assert not items
    assert rejects[0].reason.startswith("a figure must be a name, got '../")


def test_screen2words_has_five_summaries(tmp_path, read_source):
    write_screen2words(tmp_path)
    items, rejects = read_source("screen2words", "test", tmp_path)
    assert [(i.id, i.prefix, len(i.suffixes)) for i in items] == [
        ("screen2words/test/7.jpg#7", "caption en", 5)
    ]
    assert paths(items) == ["screen2words/combined/7.jpg"]
    assert [r.reason for r in rejects] == ["screen 99 has no summary"]
    items, _ = read_source("screen2words", "dev", tmp_path)
    assert items[0].suffixes == ("Login page",)


def test_a_table_loses_no_cell_or_row(tmp_path, read_source):
    write_screen2words(tmp_path)
    table = tmp_path / "screen2words/screen_summaries.csv"
    put_text(table, "screenId,summary\n7,a login page, with a button\n8,a list\n")
    reasons = {r.reason for r in read_source("screen2words", "test", tmp_path)[1]}
    assert "more cells than columns: [' with a button']" in reasons
    put_text(table, 'screenId,summary\n7,a login page\n7,"a list\n8,a map\n')
    with pytest.raises(ValueError, match=r"summaries\.csv is damaged: a quote is opened and never"):
        read_source("screen2words", "test", tmp_path)


def test_widgetcap_frames_its_widget(tmp_path, read_source):
    write_widgetcap(tmp_path)
    items, rejects = read_source("widgetcap", "test", tmp_path)
    (item,) = items
    assert (item.id, item.suffixes) == ("widgetcap/test/7.jpg#0.1", ("go back", "Return"))
    assert item.media[0].path == "rico/combined/7.jpg"
    edit = item.media[0].edit
    assert edit is not None
    assert edit.frame == (288 / 2560, 0.25, 576 / 2560, 0.5)
    assert [r.reason.partition(":")[0] for r in rejects] == ["malformed row"]
    (tmp_path / "rico/combined/7.json").unlink()
    _, rejects = read_source("widgetcap", "test", tmp_path)
    assert {r.reason for r in rejects} == {"rico/combined/7.json is missing"}


def test_table_without_a_column_is_named(tmp_path, read_source):
    write_screen2words(tmp_path)
    put_text(tmp_path / "screen2words/screen_summaries.csv", "screen,summary\n7,x\n")
    with pytest.raises(ValueError, match=r"screen_summaries\.csv lacks the column 'screenId'"):
        read_source("screen2words", "test", tmp_path)
