"""google-cloud-storage, the client that Beam reads and writes with."""

import io
import random

import pytest
import requests
from google.api_core.exceptions import NotFound, PreconditionFailed
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption
from google.resumable_media.common import InvalidResponse, RetryStrategy
from google.resumable_media.requests import ResumableUpload

from tests.gcs.faults import Rule
from tests.gcs.server import GCS

MEBIBYTE = 1 << 20


@pytest.fixture
def bucket(gcs: GCS) -> storage.Bucket:
    return storage.Client(project="test").bucket("testing")


def test_torn_chunk_is_sent_again(gcs: GCS, bucket: storage.Bucket):
    data = random.Random(0).randbytes(9 * MEBIBYTE)
    blob = bucket.blob("a/x", chunk_size=2 * MEBIBYTE)
    gcs.fail(Rule(action="tear", skip=1, at=MEBIBYTE))
    blob.upload_from_string(data, if_generation_match=0)
    assert bucket.blob("a/x").download_as_bytes() == data
    # It asks nothing, but repeats the chunk from its first byte, of which a part is held already.
    counts = gcs.requests()
    assert (counts["chunk"]["requests"], counts["chunk"]["status_reset"]) == (6, 1)
    assert "query" not in counts
    with pytest.raises(PreconditionFailed):
        bucket.blob("a/x").upload_from_string(b"", if_generation_match=0)


def test_upload_that_asks_goes_on_where_it_broke(gcs: GCS):
    data = random.Random(0).randbytes(5 * MEBIBYTE)
    address = f"{gcs.url}/upload/storage/v1/b/testing/o?uploadType=resumable&ifGenerationMatch=0"
    upload = ResumableUpload(address, 2 * MEBIBYTE, checksum="crc32c")
    upload._retry_strategy = RetryStrategy(max_retries=0)
    gcs.fail(Rule(action="tear", skip=1, at=MEBIBYTE))
    with requests.Session() as session:
        upload.initiate(session, io.BytesIO(data), {"name": "x"}, "text/plain")
        upload.transmit_next_chunk(session)
        with pytest.raises(requests.ConnectionError):
            upload.transmit_next_chunk(session)
        assert upload.bytes_uploaded == 2 * MEBIBYTE
        upload.recover(session)
        assert upload.bytes_uploaded == 3 * MEBIBYTE
        upload.transmit_next_chunk(session)
    assert upload.finished
    assert gcs.store.get("testing", "x").data == data
    assert gcs.requests()["query"]["status_308"] == 1


def test_small_upload_is_described(bucket: storage.Bucket):
    blob = bucket.blob("x")
    blob.metadata = {"key": "value"}
    blob.upload_from_string("data", content_type="text/plain", checksum="md5")
    seen = bucket.get_blob("x")
    assert (seen.size, seen.content_type, seen.metadata) == (4, "text/plain", {"key": "value"})
    assert (seen.generation, seen.crc32c) == (blob.generation, blob.crc32c)
    assert bucket.blob("x").download_as_bytes(start=1, end=2) == b"at"
    assert bucket.get_blob("none") is None
    with pytest.raises(NotFound):
        bucket.blob("none").download_as_bytes()


def test_corrupt_download_is_noticed(gcs: GCS, bucket: storage.Bucket):
    bucket.blob("x").upload_from_string(bytes(1000))
    gcs.fail(Rule(action="corrupt"))
    with pytest.raises(DataCorruption):
        bucket.blob("x").download_as_bytes()


def test_batch_deletes(gcs: GCS, bucket: storage.Bucket):
    for index in range(5):
        bucket.blob(f"x/{index}").upload_from_string(b"")
    with bucket.client.batch():
        for index in range(4):
            bucket.blob(f"x/{index}").delete()
    assert [blob.name for blob in bucket.list_blobs(prefix="x/")] == ["x/4"]
    counts = gcs.requests()
    assert (counts["batch"]["requests"], counts["delete"]["requests"]) == (1, 4)
    with pytest.raises(NotFound), bucket.client.batch():
        bucket.blob("none").delete()


def test_rewrite_goes_on_until_done(gcs: GCS, bucket: storage.Bucket):
    data = random.Random(0).randbytes(3 * MEBIBYTE)
    gcs.api.rewrite_bytes = MEBIBYTE
    source, copy = bucket.blob("x"), bucket.blob("y")
    source.upload_from_string(data)
    token, done, size = copy.rewrite(source, if_source_generation_match=source.generation)
    assert (done, size) == (MEBIBYTE, len(data))
    while token is not None:
        assert bucket.get_blob("y") is None
        token, done, size = copy.rewrite(source, token=token)
    assert bucket.blob("y").download_as_bytes() == data
    assert bucket.copy_blob(source, bucket, "z").crc32c == source.crc32c


def test_a_listing_has_pages_and_folders(bucket: storage.Bucket):
    for name in ("parts/0", "parts/1", "parts/2", "whole"):
        bucket.blob(name).upload_from_string(b"")
    found = bucket.list_blobs(delimiter="/", page_size=1)
    assert [blob.name for blob in found] == ["whole"]
    assert found.prefixes == {"parts/"}
    assert [blob.name for blob in bucket.list_blobs(page_size=2)] == [
        "parts/0",
        "parts/1",
        "parts/2",
        "whole",
    ]


def test_bucket_and_its_place(gcs: GCS, bucket: storage.Bucket):
    made = bucket.client.create_bucket("another", location="eu")
    assert made.location == "EU"
    assert bucket.client.get_bucket("testing").location == "US-CENTRAL1"
    assert bucket.client.lookup_bucket("nowhere") is None
    made.delete()
    assert not made.exists()


def test_a_resumable_creation_that_is_late_loses(gcs: GCS, bucket: storage.Bucket):
    address = f"{gcs.url}/upload/storage/v1/b/testing/o?uploadType=resumable&ifGenerationMatch=0"
    upload = ResumableUpload(address, MEBIBYTE)
    with requests.Session() as session:
        upload.initiate(session, io.BytesIO(b"late"), {"name": "x"}, "text/plain")
        bucket.blob("x").upload_from_string(b"first")
        with pytest.raises(InvalidResponse, match="412"):
            upload.transmit_next_chunk(session)
    assert bucket.blob("x").download_as_bytes() == b"first"
