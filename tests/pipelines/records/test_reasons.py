"""Reasons of rejects: about the input, and never in Python's own words."""

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipelines.records.reasons import reason_of
from pipelines.records.schema import BadInput
from pipelines.sources.own.rows import items_of
from pipelines.sources.own_source import OwnSource
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.reading.item import Item, Media
from pipelines.sources.reading.layout import question_item, text_under
from pipelines.sources.reading.row_files import read_rows
from pipelines.sources.vqa.scene_graphs import GQA
from pipelines.sources.web.tasks import WebImage, web_image_items

PYTHON = re.compile(
    r"\w(Error|Exception)\b|Traceback|NoneType|\bobject (is not|has no)|not subscriptable|"
    r"not iterable|unhashable|unsupported operand|invalid literal|could not convert|Expecting |"
    r"codec can't|argument must|expected str|indices must|to unpack|out of range|recursion depth|"
    r"Extra data|Invalid control|<class|\bdict\b|\bstr\b|\btuple\b|\bfloat\(|\bint\("
)
"""Words that Python's errors have, and those who keep data do not."""

ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.sampled_from(["", "x", "é"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "box", "label", "text", "size"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def check(reason: str) -> None:
    assert reason
    assert "\n" not in reason
    assert not PYTHON.search(reason), reason
    assert len(reason) < 500


@given(ODD, ODD, ODD)
def test_an_odd_row_of_a_published_file_is_an_item_or_a_reason(tmp_path_factory, a, b, c):
    corpus = Corpus(tmp_path_factory.getbasetemp(), ".", UnpackedMedia())

    def item(row) -> Item:
        x, y, w, h = map(float, row["box"])
        size = int(row["size"][0]) + int(x + y + w + h)
        answers = [answer["text"].lower() for answer in row["answers"].values()]
        media = Media(path=f"{size:03d}.jpg")
        return question_item(GQA, "val", media, 1, text_under(row, "question"), answers)

    odd = {"box": a, "size": b, "question": "q", "answers": c}
    rows = [odd, a, {"box": [1, 2, 3, 4], **odd}, {**odd, "box": [1, 2, 3, 4], "size": [b]}]
    found = list(read_rows(corpus, corpus.folder / "x.json", "gqa/val", rows, item))
    assert len(found) == 4
    for one in found:
        if not isinstance(one, Item):
            check(one.reason)


@example({"captions": [[["de"], "a list is no language"]]})
@given(st.dictionaries(st.sampled_from(["objects", "qa", "ocr", "captions", "width"]), ODD))
def test_odd_annotations_of_a_web_image_are_rejects_with_a_reason(metadata):
    sample = WebImage(id="web/a", media=Media(path="a.jpg"), captions=("fine",), metadata=metadata)
    assert all(isinstance(reason, str) for reason in sample.unread_fields(()))
    found = list(web_image_items(sample, per_task=9))
    # The good caption is an item whatever stands beside it, unless `captions` takes its place.
    assert "captions" in metadata or any(isinstance(one, Item) for one in found)
    for one in found:
        if not isinstance(one, Item):
            check(one.reason)


@given(st.dictionaries(st.sampled_from(["image", "question", "answers", "meta", "lang"]), ODD))
def test_an_odd_row_of_ones_own_is_an_item_or_a_reason(tmp_path_factory, row):
    corpus = Corpus(tmp_path_factory.getbasetemp(), ".", UnpackedMedia())
    source = OwnSource(reader="jsonl", name="mine")
    broken = json.dumps({"image": "a.png", "answers": "x"})[:-3]
    rows = [(1, lambda: row), (2, lambda: json.loads(broken)), (3, lambda: b"\xff".decode())]
    found = list(items_of(corpus, "val", lambda: rows, source=source, file=corpus.folder / "x"))
    assert len(found) == 3
    for one in found:
        if not isinstance(one, Item):
            check(one.reason)


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (lambda row: row["b"], "'b' is missing among 'a'"),
        (lambda row: {8: 1}[9], "9 is missing"),
        (lambda row: float(row["a"]), "'size' is not a number; the row has a: 'size'"),
        (lambda row: int(row["a"]), "'size' is not a number; the row has a: 'size'"),
        (lambda row: row["a"]["x"], "a text where an object is expected; the row has a: 'size'"),
        (lambda row: row.get("c")["x"], "nothing (null) where another kind of value is expected"),
        (lambda row: row["a"].items(), "a text where another kind of value is expected"),
        (
            lambda row: dict(json.loads("[[1, 2, 3]]")),
            "a value is not of the kind that is expected",
        ),
        (lambda row: [0][1], "a list has fewer values than expected"),
        (lambda row: int(float("inf")), "a number is infinite, or too large"),
        (lambda row: int(float("nan")), "a number is NaN"),
        (
            lambda row: json.dumps([float("inf")], allow_nan=False),
            "a number is NaN or infinite; the row has a: 'size'",
        ),
        (lambda row: json.loads('{"a": '), "not JSON from character 7 on: ''"),
        (lambda row: b"a\xff".decode(), "not UTF-8 at byte 1"),
        (lambda row: json.loads("[" * 100_000), "nested too deeply"),
    ],
)
def test_the_reason_names_field_and_value(cause, reason):
    row = {"a": "size"}
    with pytest.raises(Exception) as raised:  # noqa: PT011, any of Python's.
        cause(row)
    assert reason_of(raised.value, row).startswith(reason)
    check(reason_of(raised.value, row))


def test_a_reason_stays_as_it_is():
    assert reason_of(BadInput("too small: 1x9"), {"a": 1}) == "too small: 1x9"
