"""Records survive the trip through tf.train.Example."""

import dataclasses

import pytest

from pipelines.records.example import decode_example, encode_example
from pipelines.records.licence import Licence
from pipelines.records.schema import Record

RECORD = Record(
    id="chartqa/val/1",
    images=(b"\xff\xd8one", b"two"),
    prefix="Wie viele?",
    suffixes=("vier", "4"),
    task="chartqa",
    lang="de",
    source="chartqa/1.png",
    source_sha256="ab" * 32,
    answers=("4",),
    masks=('{"size": [2, 3], "counts": "06"}',),
    frame_requested=(0.0, 0.5),
    frame_decoded=(0.0, 0.25),
    meta={"kind": "human", "numbers": [1, 2.5], "ö": None},
)


def test_record_comes_back_equal():
    assert decode_example(encode_example(RECORD)) == RECORD


def test_windows_come_back_and_one_window_is_not_noted():
    record = dataclasses.replace(RECORD, num_windows=2)
    assert decode_example(encode_example(record)) == record
    assert record.window(1) == (b"two",)
    assert RECORD.window() == RECORD.images
    assert b"num_windows" not in encode_example(RECORD)
    with pytest.raises(ValueError, match=r"num_windows .*\b2 images .* got 3"):
        dataclasses.replace(RECORD, num_windows=3)


def test_prefixes_of_each_suffix_come_back():
    record = dataclasses.replace(RECORD, prefixes=(("Wie viele?", "Anzahl\n?"), ("How many?",)))
    assert decode_example(encode_example(record)) == record
    for wrong in ((("one",),), (("one",), ())):
        with pytest.raises(ValueError, match=r"prefixes .* 2 suffixes"):
            dataclasses.replace(RECORD, prefixes=wrong)


def test_a_licence_comes_back_and_one_that_is_not_stated_is_not_noted():
    licence = Licence(licence="CC-BY-4.0", holder="Zoë")
    record = dataclasses.replace(RECORD, licence=licence)
    assert decode_example(encode_example(record)) == record
    assert b"licence_address" not in encode_example(record)
    assert b"licence" not in encode_example(RECORD)
    with pytest.raises(ValueError, match=r"holder .*got 'a\\nb'"):
        Licence(holder="a\nb")


def test_equal_records_give_equal_bytes():
    other = dataclasses.replace(RECORD, meta=dict(reversed(RECORD.meta.items())))
    assert encode_example(other) == encode_example(RECORD)


def test_missing_feature_is_named():
    with pytest.raises(ValueError, match="feature 'id' is missing"):
        decode_example(b"")


@pytest.mark.parametrize("field", ["id", "task", "source", "source_sha256"])
def test_empty_field_is_named(field):
    with pytest.raises(ValueError, match=f"{field} is empty"):
        dataclasses.replace(RECORD, **{field: ""})


def test_times_go_in_pairs():
    with pytest.raises(ValueError, match=r"frame_requested .*\b2 .*frame_decoded 1"):
        dataclasses.replace(RECORD, frame_decoded=(0.0,))
