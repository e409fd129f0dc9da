"""TensorStore, which Orbax writes arrays with."""

import random

import pytest
import tensorstore

from tests.gcs.faults import Rule
from tests.gcs.server import GCS

ABSENT = b"\x02"
"""TensorStore's word for the generation of what is not there."""


@pytest.fixture
def store(gcs: GCS) -> tensorstore.KvStore:
    spec = {"driver": "gcs", "bucket": "testing", "path": "kv/"}
    return tensorstore.KvStore.open(spec).result()


def test_values_come_back(gcs: GCS, store: tensorstore.KvStore):
    large = random.Random(0).randbytes(8 << 20)
    for name, data in (("a/b c+é%25", b"small"), ("empty", b""), ("large", large)):
        store.write(name, data).result()
        assert store.read(name).result().value == data
    assert gcs.store.get("testing", "kv/a/b c+é%25").data == b"small"
    assert store.read("none").result().state == "missing"
    assert store.list().result() == [name.encode() for name in ("a/b c+é%25", "empty", "large")]
    store.delete_range(tensorstore.KvStore.KeyRange("a", "f")).result()
    assert store.list().result() == [b"large"]


def test_write_asks_for_the_generation(store: tensorstore.KvStore):
    first = store.write("x", b"one", if_equal=ABSENT).result()
    assert store.write("x", b"two", if_equal=ABSENT).result().generation == b""
    second = store.write("x", b"two", if_equal=first.generation).result()
    assert store.write("x", b"three", if_equal=first.generation).result().generation == b""
    assert store.read("x").result().value == b"two"
    assert store.read("x", if_not_equal=second.generation).result().state == "unspecified"
    store.write("x", None, if_equal=first.generation).result()
    assert store.read("x").result().value == b"two"
    store.write("x", None, if_equal=second.generation).result()
    assert store.read("x").result().state == "missing"


def test_arrays_in_ocdbt(gcs: GCS):
    base = {"driver": "ocdbt", "base": "gs://testing/tree/"}
    spec = {"driver": "zarr3", "kvstore": base | {"path": "array"}}
    array = tensorstore.open(spec, create=True, dtype=tensorstore.int32, shape=[30, 20]).result()
    array[...] = 7
    array[3, 4] = 5
    again = tensorstore.open(spec).result().read().result()
    assert (again[3, 4], again.sum()) == (5, 7 * 600 - 2)
    assert gcs.store.get("testing", "tree/manifest.ocdbt").data


@pytest.mark.slow
def test_refused_write_is_repeated(gcs: GCS, store: tensorstore.KvStore):
    gcs.fail(Rule(action="answer", verb="upload", status=429))
    store.write("x", b"data").result()
    assert store.read("x").result().value == b"data"
    assert gcs.requests()["upload"]["requests"] == 2
