"""Numbers become the texts that were written, however few bits they are stored in."""

import math
import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather, parquet

from pipelines.records.example import _Example as Example
from pipelines.records.tfrecord import write_shard
from pipelines.sources.reading.hub import rows_of_batch
from pipelines.sources.reading.values import answer_of
from tests.pipelines.sources.reading.test_odd_inputs import Listed, picture, write_rows

DECIMALS = st.decimals(-999, 999, places=2).map(lambda number: Decimal(str(float(number))))


def answers(listed: Listed) -> dict[str, tuple[str, ...]]:
    return {item.id.partition("/0")[2]: item.answers for item in listed.items if item.answers}


def write_answers(path, kind: pa.DataType, values: list) -> None:
    pair = pa.struct([("question", pa.string()), ("answer", kind)])
    schema = pa.schema([("image", pa.binary()), ("qa", pa.list_(pair))])
    rows = [
        {"image": picture(n), "qa": [{"question": "how much?", "answer": value}]}
        for n, value in enumerate(values)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, schema)
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        feather.write_feather(table, str(path))


@pytest.mark.parametrize("form", ["parquet", "feather"])
def test_answers_of_narrow_floats_are_as_they_were_written(tmp_path, form):
    write_answers(tmp_path / f"web/a.{form}", pa.float32(), [5.3, 0.2, 7.0, None, 1e16])
    listed = Listed(tmp_path, tasks=("vqa", "question"))
    assert [a for a in answers(listed).values() if a] == [
        ("5.3",),
        ("0.2",),
        ("7",),
        ("10000000000000000",),
    ]
    assert {item.prefix for item in listed.items if item.task == "question"} == {
        "question en 5.3",
        "question en 0.2",
        "question en 7",
        "question en 10000000000000000",
    }
    assert set(listed.reasons) == {f"web/a.{form}/000000003#{t}.0" for t in ("vqa", "question")}


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        (pa.float32(), 8.6),
        (pa.float16(), np.float16(8.6)),
        (pa.list_(pa.list_(pa.float32(), 3)), [[8.6, 0.7, 2.0], [math.inf, None, 0.1]]),
        (pa.large_list(pa.float16()), [np.float16(0.3), None]),
        (pa.list_(pa.float16()), [16384.0, -65504.0, 3.0]),
        (pa.list_view(pa.float32()), [0.3]),
        (pa.struct([("a", pa.struct([("b", pa.float32())])), ("c", pa.float64())]), None),
        (
            pa.struct([("a", pa.struct([("b", pa.float32())])), ("c", pa.float64())]),
            {"a": {"b": 8.6}, "c": 3.700000047683716},
        ),
        (pa.dictionary(pa.int8(), pa.float32()), 8.6),
        (pa.run_end_encoded(pa.int16(), pa.float32()), 8.6),
    ],
    ids=str,
)
def test_narrow_floats_are_as_written_at_any_depth(kind, cell):
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        column = pa.array([cell], pa.float32())
        is_dictionary = pa.types.is_dictionary(kind)
        column = column.dictionary_encode() if is_dictionary else pa.compute.run_end_encode(column)
    else:
        column = pa.array([cell], kind)
    batch = pa.RecordBatch.from_arrays([column, pa.array([b"x"])], ["found", "image"])
    (row,) = rows_of_batch(batch)
    # NumPy shows half floats with their type.
    expected = re.sub(r"np.float16\(([^)]*)\)", r"\1", str(cell))
    assert (str(row["found"]), row["image"]) == (expected, b"x")


def test_a_text_that_is_none_hides_no_width():
    odd = pa.Array.from_buffers(pa.string(), 2, pa.array([b"\xff", b"fine"]).buffers())
    batch = pa.RecordBatch.from_arrays([odd, pa.array([5.3, 0.2], pa.float32())], ["t", "f"])
    assert rows_of_batch(batch) == [{"t": b"\xff", "f": 5.3}, {"t": "fine", "f": 0.2}]


@given(DECIMALS)
def test_every_short_decimal_survives_32_bits(number):
    (row,) = rows_of_batch(pa.record_batch([pa.array([float(number)], pa.float32())], ["n"]))
    assert answer_of(row["n"], "n") == answer_of(float(number), "n")


def test_floats_of_an_example_are_as_they_were_written(tmp_path):
    example = Example()
    feature = example.features.feature
    feature["image"].bytes_list.value.append(picture(4))
    feature["q"].bytes_list.value.extend([b"how high?", b"how many?", b"how far?"])
    feature["a"].float_list.value.extend([5.3, 4.0, 1e16])
    feature["key"].float_list.value.append(0.7)
    feature["terms"].float_list.value.append(4.1)
    (tmp_path / "tfrecord").mkdir()
    write_shard(tmp_path / "tfrecord/a.tfrecord", [example.SerializeToString()])
    (tmp_path / "tfrecord/a.idx").unlink()
    features = {"image": "image", "question": "q", "answer": "a", "id": "key", "licence": "terms"}
    listed = Listed(tmp_path, "tfrecord", features=features, tasks=("vqa",), per_task=9)
    assert {item.id: item.answers for item in listed.items} == {
        "tfrecord/0.7#vqa.0": ("5.3",),
        "tfrecord/0.7#vqa.1": ("4",),
        "tfrecord/0.7#vqa.2": ("10000000000000000",),
    }
    assert {item.licence.licence for item in listed.items} == {"4.1"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e16, "10000000000000000"),
        (1e23, "1" + "0" * 23),
        (-4e15, "-4000000000000000"),
        (123456789012345678, "123456789012345678"),
        (np.float32(5.3), "5.3"),
        (np.float32(1e16), "10000000000000000"),
        (-0.0, "0"),
        (Decimal("2.30"), "2.30"),
        (Decimal("1E+3"), "1000"),
    ],
)
def test_a_whole_number_is_written_in_digits(value, text):
    assert answer_of(value, "answer") == text


def test_a_number_of_json_with_an_exponent_is_its_digits(tmp_path):
    write_rows(tmp_path, [{"image": "a.png", "qa": [{"question": "q", "answer": 1e16}]}])
    text = (tmp_path / "web/a.jsonl").read_text()
    assert "1e+16" in text
    assert answers(Listed(tmp_path, tasks=("vqa",))) == {"00000000#vqa.0": ("10000000000000000",)}
