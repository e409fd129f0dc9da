"""Cells and rows as strangers write them: one reading for each content, or a reason to act on."""

import base64
import json
import math
import re
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from pipelines.records.schema import BadInput
from pipelines.sources.reading.hub import is_inline, picture_cell
from pipelines.sources.reading.values import box_of, language_of, rows_under, text_of, value_under
from tests.pipelines.sources.reading.test_odd_inputs import (
    ABSENT,
    Listed,
    picture,
    write_rows,
    write_tar,
)

WORD = st.text(st.characters(codec="utf-16"), min_size=1, max_size=9).map(
    lambda text: "".join(text.split()).replace("\ufeff", "").replace("\ufffd", "") or "x"
)
BOX = st.lists(st.integers(0, 9), min_size=4, max_size=4)
PYTHONS_WORDS = re.compile(r"Error|NoneType|codec|'(str|dict|list|int|float)'|traceback", re.I)


# Texts.


@given(WORD, st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"]))
def test_a_mark_says_how_a_text_is_encoded(text, encoding):
    mark = "\ufeff" if encoding.endswith("e") else ""
    assert text_of((mark + text).encode(encoding), "caption") == text


@pytest.mark.parametrize("data", [b"\xff\xfea", b"\xfe\xff\xd8\x00", b"\xff", b"caf\xe9"])
def test_half_a_character_is_named(data):
    with pytest.raises(BadInput, match=r"^caption is not UTF-8$"):
        text_of(data, "caption")


@given(st.sampled_from(["en", "zh-Hans", "pt_BR", "日本"]), st.text(" \t\n\ufeff", max_size=3))
def test_a_language_is_one_word_of_a_prompt(language, blanks):
    mark = "\ufeff" * blanks.startswith("\ufeff")
    blanks = blanks.replace("\ufeff", "")
    assert language_of(f"{mark}{blanks}{language}{blanks}", "lang") == language
    assert language_of(blanks, "lang") == "en"
    for inner in blanks:
        with pytest.raises(BadInput, match="lang must be "):
            language_of(f"en{inner}de", "lang")


# Rows.


@pytest.mark.parametrize("delimiter", [",", "\t"])
@pytest.mark.parametrize("cell", ['"5 inch screen', '"red" apple', '"a" and "b"'])
def test_a_stray_quote_costs_its_lines_and_is_named(tmp_path, delimiter, cell):
    rows = [["image", "caption"], ["a.png", "one"], [cell, "two"], ["a.png", "three"]]
    rows += [["a.png", 'says "hi"'], ["a.png", '"five, with ""quotes"""']]
    name = "web/a.csv" if delimiter == "," else "web/a.tsv"
    write_rows(tmp_path, [], name)
    (tmp_path / name).write_text("".join(delimiter.join(row) + "\n" for row in rows))
    listed = Listed(tmp_path)
    read = [text for item in listed.items for text in item.suffixes]
    (reject,) = listed.rejects
    first, last = map(int, re.findall(r"lines (\d+) to (\d+)", reject.reason)[0])
    assert first == 3
    # Every line is in a record, or among those that the reject names.
    assert read == [text for n, text in enumerate(
        ["one", "two", "three", 'says "hi"', 'five, with "quotes"'], start=2
    ) if not first <= n <= last]  # fmt: skip


@pytest.mark.parametrize("row", ['{"image": "a.png", "caption": "x", "caption": "y"}',
    '{"image": "a.png", "qa": [{"question": "?", "answer": "x", "answer": "y"}]}'])  # fmt: skip
@pytest.mark.parametrize("container", ["lines", "own", "member"])
def test_a_name_that_is_twice_in_a_row_is_not_chosen_from(tmp_path, row, container):
    name = {"lines": "web/a.jsonl", "own": "jsonl/train.jsonl", "member": "web/a.tar"}[container]
    write_rows(tmp_path, [], name)
    if container == "member":
        write_tar(tmp_path / name, [("1.png", picture(3)), ("1.json", row), ("1.txt", "x")])
    else:
        (tmp_path / name).write_text(row)
    listed = Listed(tmp_path, "jsonl" if container == "own" else "web")
    assert not listed.items
    (reject,) = listed.rejects
    assert re.search(r"'(caption|answer)' is there twice$", reject.reason)


def test_members_that_lie_apart_are_told_so(tmp_path):
    write_tar(tmp_path / "web/a.tar", [
        ("0.png", picture(1)), ("1.png", picture(2)), ("0.txt", "a"), ("1.txt", "b")
    ])  # fmt: skip
    reasons = Listed(tmp_path).reasons.values()
    assert [r for r in reasons if "members of a sample must follow each other" in r]


LISTED = ("ocr", "objects", "qa")
ODD = st.recursive(
    st.one_of(ABSENT, st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["text", "box", "label", "question", "answer", "mask"]), inner
        ),
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from((*LISTED, "captions", "width", "LANGUAGE")), ODD)
def test_an_odd_annotation_is_read_or_named_without_pythons_words(field, value):
    row = {"image": "a.png", "caption": "good", field: value}
    with tempfile.TemporaryDirectory() as folder:
        write_rows(Path(folder), [row, {"image": "a.png", "caption": "next"}])
        listed = Listed(Path(folder), per_task=9)
    assert [i.suffixes for i in listed.items if "/000000001#" in i.id] == [("next",)]
    for reason in listed.reasons.values():
        assert not PYTHONS_WORDS.search(reason), reason
        assert "not of the kind that is expected" not in reason
    for item in listed.items:
        assert item.lang.split() == [item.lang]
        assert "\n" not in item.prefix
        assert len(item.boxes) == 0 or all(map(math.isfinite, item.boxes[0]))


@given(st.lists(st.fixed_dictionaries({"text": WORD, "box": BOX}), max_size=4))
def test_rows_and_columns_of_an_annotation_are_the_same(rows):
    columns = {key: [row[key] for row in rows] for key in ("text", "box")}
    assert rows_under({"ocr": rows}, "ocr") == rows_under({"ocr": columns}, "ocr") == rows
    assert rows_under({}, "ocr") == rows_under({"ocr": None}, "ocr") == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("text", "ocr must be a list of objects, got 'text'"),
        ({"text": "a"}, "ocr must be a list of objects, got {'text': 'a'}"),
        ({"text": ["a"], "box": []}, "as many values in each column, got 1 text, 0 box"),
        (5, "ocr must be a list of objects, got 5"),
    ],
)
def test_what_lists_no_rows_is_named(value, reason):
    with pytest.raises(BadInput, match=re.escape(reason)):
        rows_under({"ocr": value}, "ocr")


@pytest.mark.parametrize("row", [None, "w", [1], {}, {"text": None}, {"text": math.nan}])
def test_a_row_without_a_value_is_named(row):
    with pytest.raises(BadInput, match=r"text.*ocr|ocr.*text"):
        value_under(row, "text", "ocr")


@pytest.mark.parametrize(
    "box", [None, [], [1, 2, 3], [1, 2, 3, "x"], [1, 2, 3, math.inf], {"x": 1}, "1234", [[1] * 4]]
)
def test_a_box_is_four_finite_numbers(box):
    with pytest.raises(BadInput, match=r"box .* x0, y0, x1, y1, got "):
        box_of(box, "box")


@pytest.mark.parametrize(
    ("captions", "texts", "reasons"),
    [
        (["a", None], [], ["caption en must be a text, got None"]),
        ([{"caption": "a"}], [], ["caption en must be a text, got {'caption': 'a'}"]),
        (["a", "b"], [("a", "b")], []),
        ("a", [("a",)], []),
        ([["de", "a"], ["en", None]], [("a",)], []),
        ({"e\nn": "a"}, [], ["captions must be a language, such as en or zh-Hans, got 'e\\nn'"]),
    ],
)
def test_captions_are_texts_by_language_or_named(tmp_path, captions, texts, reasons):
    write_rows(tmp_path, [{"image": "a.png", "captions": captions}])
    listed = Listed(tmp_path, per_task=9)
    assert [item.suffixes for item in listed.items] == texts
    assert [r.removeprefix("malformed annotation: ") for r in listed.reasons.values()] == reasons


@pytest.mark.parametrize("pair", [(" ", "a"), ("q", ""), ("q", [" ", ""])])
def test_a_question_or_answer_of_nothing_is_no_pair(tmp_path, pair):
    write_rows(tmp_path, [{"image": "a.png", "qa": [{"question": pair[0], "answer": pair[1]}]}])
    listed = Listed(tmp_path, tasks=("vqa",))
    assert not listed.items
    assert all("it is empty" in reason for reason in listed.reasons.values())


# Pictures in cells.

CELL = st.sampled_from(["data URI", "base64", "struct of base64", "numbers", "list of data URI"])


def cell_of(kind: str, data: bytes) -> object:
    text = base64.b64encode(data).decode()
    uri = f"data:image/png;base64,{text}"
    cells = {
        "data URI": uri,
        "base64": text,
        "struct of base64": {"bytes": text, "path": None},
        "numbers": list(data),
        "list of data URI": [uri],
    }
    return cells[kind]


@settings(deadline=None, max_examples=25)
@given(CELL, st.sampled_from(["PNG", "JPEG", "GIF", "WEBP", "TIFF"]), st.integers(0, 255))
def test_a_picture_is_the_same_however_its_cell_is_written(kind, form, grey):
    data = picture(grey, form)
    cell = cell_of(kind, data)
    assert picture_cell(cell, "image") == (data, "")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_rows(root, [{"image": cell, "caption": "x"}])
        table = pa.Table.from_pylist([{"image": cell, "caption": "x"}])
        parquet.write_table(table, root / "web/a.parquet")
        if kind in ("data URI", "base64"):
            (root / "web/a.tsv").write_text(f"x\t{cell}\n")
            (root / "web/b.tsv").write_text(f"{cell}\tx\n")
        listed = Listed(root)
    assert not listed.rejects
    assert set(listed.pixels.values()) == {data}
    assert len(listed.items) == (4 if kind in ("data URI", "base64") else 2)


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("data:image/svg+xml,<svg/>", "image must be a data URI in base64, got 'data:image/svg"),
        ("data:image/png;base64,%%%", "image must be a picture's bytes, also in base64, got"),
        ({"bytes": "no base64!"}, "image must be a picture's bytes, also in base64, got"),
        ([1, 2, 300], "image lists 3 files, one is expected"),
    ],
)
def test_a_cell_that_is_no_picture_says_what_is(cell, reason):
    with pytest.raises(BadInput, match=re.escape(reason)):
        picture_cell(cell, "image")


@given(st.text("abc/._-", max_size=80))
def test_a_path_is_no_picture(path):
    assert not is_inline(path)
    assert picture_cell(path, "image") == (b"", path)


@pytest.mark.parametrize("cell", [None, {}, {"bytes": None, "path": None}, [], [None]])
def test_a_null_and_a_struct_of_nulls_are_the_same(tmp_path, cell):
    write_rows(tmp_path, [{"image": cell, "caption": "x"}])
    assert list(Listed(tmp_path).reasons.values()) == ["no image among the fields image, caption"]


def test_two_pictures_of_one_row_are_not_chosen_from(tmp_path):
    rows = [{"jpg": picture(1), "png": picture(n), "caption": "x"} for n in (1, 2)]
    (tmp_path / "web").mkdir()
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "web/a.parquet")
    listed = Listed(tmp_path)
    assert list(listed.pixels.values()) == [picture(1)]
    assert [*listed.reasons] == ["web/a.parquet/000000001"]
    assert "different pictures in the fields jpg, png" in listed.reasons["web/a.parquet/000000001"]


# Lists.

ENCODINGS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-be-mark"])


def encoded(text: str, encoding: str) -> bytes:
    if encoding == "utf-16-be-mark":
        return b"\xfe\xff" + text.encode("utf-16-be")
    return text.encode(encoding)


@settings(deadline=None, max_examples=25)
@given(st.lists(WORD, min_size=1, max_size=4), ENCODINGS, st.sampled_from(["\n", "\r\n"]))
def test_lists_are_read_alike_in_every_encoding(texts, encoding, end):
    rows = [{"image": "a.png", "question": "q", "answers": [text]} for text in texts]
    table = f"image,question,answers{end}a.png,q,x{end}a.png,q,ü{end}"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        lines = end.join(json.dumps(row, ensure_ascii=False) for row in rows) + end
        for place in ("web", "jsonl", "csv"):
            (root / place).mkdir()
            (root / place / "a.png").write_bytes(picture(1))
        captions = end.join(json.dumps({"image": "a.png", "text": t}) for t in texts)
        (root / "web/a.jsonl").write_bytes(encoded(captions, encoding))
        (root / "jsonl/train.jsonl").write_bytes(encoded(lines, encoding))
        (root / "csv/train.csv").write_bytes(encoded(table, encoding))
        web, own, csv = (Listed(root, source) for source in ("web", "jsonl", "csv"))
    assert not [*web.rejects, *own.rejects, *csv.rejects]
    assert [item.suffixes[0] for item in web.items] == texts
    assert [item.answers for item in own.items] == [(text,) for text in texts]
    assert [item.answers for item in csv.items] == [("x",), ("ü",)]


def test_members_are_read_in_utf_16_as_well(tmp_path):
    members = [
        ("0.png", picture(1)),
        ("0.txt", "ünï".encode("utf-16")),
        ("1.png", picture(2)),
        ("1.json", '{"caption": "ö"}'.encode("utf-16")),
    ]
    write_tar(tmp_path / "web/a.tar", members)
    assert {item.suffixes for item in Listed(tmp_path).items} == {("ünï",), ("ö",)}


@pytest.mark.parametrize("key", ["prefix", "question", "image"])
def test_several_texts_of_an_own_row_are_not_chosen_from(tmp_path, key):
    row = {"image": "a.png", "answers": "a", "question": "q"} | {key: ["a.png", "b", "c"]}
    if key == "prefix":
        del row["question"]
    write_rows(tmp_path, [row], "jsonl/train.jsonl")
    (reason,) = Listed(tmp_path, "jsonl").reasons.values()
    assert "3" in reason
