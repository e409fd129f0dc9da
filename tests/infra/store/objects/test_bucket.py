"""The verbs on each kind of bucket: preconditions, lost replies, torn uploads, other bytes."""

import hashlib
import json
import threading
import time
import types
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.store.backend import StoredDamageError
from infra.store.manifest import File
from infra.store.objects.bucket import Bucket, BucketError
from tests.gcs.faults import Rule
from tests.gcs.objects import Content
from tests.gcs.server import GCS
from tests.s3.others import azurite_server, moto_server


@pytest.fixture(autouse=True)
def _no_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has all try again at once, who would wait a second and more."""
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path))
    monkeypatch.setattr("gcsfs.retry.asyncio", types.SimpleNamespace(sleep=_at_once))
    monkeypatch.setattr(
        "infra.store.objects.object_client.time", types.SimpleNamespace(sleep=print)
    )
    monkeypatch.setattr("infra.store.objects.obstore_client._RETRIES", {"max_retries": 1})


async def _at_once(seconds: float) -> None:
    pass


@pytest.fixture(params=["gcs", "s3", "az"])
def server(request: pytest.FixtureRequest) -> GCS:
    """Our own servers, which fail on demand."""
    return request.getfixturevalue(request.param)


with_checksums = pytest.mark.parametrize("server", ["gcs", "s3"], indirect=True)
"""Of buckets that compare what they are sent, and say what they send; TLS alone guards Azure's."""


@pytest.fixture
def files(server: GCS) -> Bucket:
    return Bucket(f"{server.uri}/some/where")


@pytest.fixture(scope="module")
def moto() -> Iterator[dict[str, str]]:
    with moto_server() as environment:
        yield {**environment, "scheme": "s3"}


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with azurite_server(tmp_path_factory.mktemp("azurite")) as environment:
        yield {**environment, "scheme": "az"}


@pytest.fixture(params=["gcs", "s3", "az", "moto", "azurite"])
def any_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket of our own servers, and of others' that do not fail on demand."""
    server = request.getfixturevalue(request.param)
    if isinstance(server, GCS):
        return Bucket(f"{server.uri}/some/where")
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    return Bucket(f"{server['scheme']}://testing/{uuid.uuid4().hex}")


def written(files: Bucket, folder: str, **contents: bytes) -> dict[str, File]:
    path = files.make_workspace(folder)
    found = {}
    for name, data in contents.items():
        (path / name).write_bytes(data)
        found[name] = File(sha256=hashlib.sha256(data).hexdigest(), size=len(data))
    return found


def test_records_are_created_once_replaced_and_deleted_by_what_is_there(any_files: Bucket):
    files = any_files
    assert files.create_if_absent("a/b/x", b"one")
    assert not files.create_if_absent("a/b/x", b"two")
    assert files.create_if_absent("a/b/x", b"one")  # These bytes are the ones there.
    assert files.read("a/b/x") == b"one"
    before = files.stat("a/b/x")
    assert not files.compare_and_swap("a/b/x", b"other", b"two")
    assert files.compare_and_swap("a/b/x", b"one", b"two")
    assert files.stat("a/b/x").version != before.version
    assert not files.compare_and_delete("a/b/x", b"one")
    assert files.compare_and_delete("a/b/x", b"two")
    assert not files.compare_and_delete("a/b/x", b"two")
    assert not files.compare_and_swap("a/b/x", b"two", b"three")
    with pytest.raises(FileNotFoundError):
        files.read("a/b/x")
    with pytest.raises(FileNotFoundError):
        files.stat("a/b/x")


def test_a_folder_comes_back_whole_and_in_ranges(any_files: Bucket, monkeypatch, tmp_path: Path):
    contents = {"large": bytes(range(256)) * 80_000, "empty": b"", "ü #%+? x": b"7" * 97}
    noted = written(any_files, "d", **contents)
    any_files.publish_folder("d", noted, {})
    assert {n: stat.size for n, stat in any_files.listing("d").items()} == {
        name: file.size for name, file in sorted(noted.items())
    }
    assert dict(any_files.walk("d")) == any_files.listing("d")
    assert any_files.stat("d/large") == any_files.listing("d")["large"]
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path / "other"))
    other = Bucket(any_files.uri)
    folder = other.local_folder("d", noted)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == contents
    assert other.read_range("d/large", 300, 7) == contents["large"][300:307]
    assert other.open("d/large").read() == contents["large"]
    other.remove("d")
    assert (any_files.listing("d"), any_files.folders("")) == ({}, [])


def test_folders_are_listed_page_by_page(files: Bucket, server: GCS):
    for i in range(2100):
        server.store.put("testing", f"some/where/m/{i:04}", Content.of(b"7"))
    files.create_if_absent("m/deep/er/x", b"12345")
    assert list(files.listing("m")) == [f"{i:04}" for i in range(2100)]
    assert files.folders("m") == ["deep"]
    assert files.folders("") == ["m"]
    assert files.total_stat("m").size == 2105
    assert files.listing("none") == {}
    assert files.sizes("m/deep", ["er/x", "no"]) == {"er/x": 5}
    files.remove("m/deep")
    assert files.folders("m") == []


@pytest.mark.parametrize(
    "rule",
    [
        Rule(action="lose", verb="upload"),
        Rule(action="lose_answer", verb="upload"),
        Rule(action="answer", verb="upload", status=429),
        Rule(action="reset_request", verb="upload"),
        Rule(action="reset_reply", verb="upload"),
    ],
    ids=lambda rule: f"{rule.action} {rule.status}",
)
def test_a_write_whose_reply_is_lost_is_looked_up(files: Bucket, server: GCS, rule: Rule):
    server.fail(rule)
    assert files.create_if_absent("x", b"one")
    assert not files.create_if_absent("x", b"two")
    server.fail(rule)
    assert files.compare_and_swap("x", b"one", b"two")
    assert files.read("x") == b"two"
    assert server.faults.fired() == [1, 1]


@with_checksums
def test_other_bytes_than_are_stored_are_read_again(files: Bucket, server: GCS):
    files.create_if_absent("x", b"one")
    server.fail(Rule(action="corrupt", verb="media"))
    assert files.read("x") == b"one"
    noted = written(files, "d", a=b"hello" * 9)
    files.publish_folder("d", noted, {})
    server.fail(Rule(action="corrupt", verb="media"))
    assert (Bucket(files.uri).local_folder("d", noted) / "a").read_bytes() == b"hello" * 9


@with_checksums
def test_other_bytes_than_were_sent_are_sent_again(files: Bucket, server: GCS):
    server.fail(Rule(action="corrupt_upload"))
    assert files.create_if_absent("x", b"one")
    assert files.read("x") == b"one"
    server.fail(Rule(action="corrupt_upload"))
    assert files.compare_and_swap("x", b"one", b"two")
    assert files.read("x") == b"two"
    noted = written(files, "d", small=b"1" * 999, large=bytes(range(256)) * 50_000)
    server.fail(Rule(action="corrupt_upload", name="*small"), Rule(action="corrupt_upload"))
    files.publish_folder("d", noted, {})
    assert server.faults.fired() == [1, 1, 1, 1]
    assert {name: files.sha256(f"d/{name}") for name in noted} == {
        name: file.sha256 for name, file in noted.items()
    }


def test_what_was_just_stored_may_not_be_listed_yet(files: Bucket, server: GCS):
    noted = written(files, "d", a=b"hello")
    server.fail(Rule(action="stale", seconds=60.0))
    files.publish_folder("d", noted, {})
    assert server.faults.fired() == [1]
    assert files.read("d/a") == b"hello"


@pytest.mark.parametrize(
    "any_files", ["gcs", "s3", "az", "azurite"], indirect=True
)  # moto: not atomic.
def test_of_twelve_that_create_one_wins(any_files: Bucket):
    won: list[int] = []

    def create(i: int) -> None:
        if any_files.create_if_absent("x", str(i).encode()):
            won.append(i)

    racers = [threading.Thread(target=create, args=(i,)) for i in range(12)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert any_files.read("x") == str(won[0]).encode()
    assert len(won) == 1


@pytest.mark.parametrize(
    "rule",
    [
        Rule(action="tear", verb="chunk"),
        Rule(action="lose", verb="chunk"),
        Rule(action="answer", verb="chunk"),
        Rule(action="reset", name="*large"),  # Its first request.
        Rule(action="short", verb="chunk"),
    ],
    ids=lambda rule: f"{rule.action} {rule.verb}",
)
def test_a_large_file_arrives_whole_whatever_happens(
    files: Bucket, server: GCS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: Rule
):
    noted = written(files, "d", small=b"1", large=bytes(range(256)) * 50_000)
    server.fail(rule)
    files.publish_folder("d", noted, {})
    assert server.faults.fired() == [1]
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path / "other"))
    other = Bucket(files.uri)
    found = other.local_folder("d", noted)
    assert (found / "large").read_bytes() == bytes(range(256)) * 50_000
    assert files.sha256("d/large") == noted["large"].sha256


def test_what_is_not_what_the_manifest_says_is_refused(
    any_files: Bucket, tmp_path: Path, monkeypatch
):
    files = any_files
    noted = written(files, "d", a=b"hello")
    files.publish_folder("d", noted, {})
    assert files.compare_and_delete("d/a", b"hello")
    files.create_if_absent("d/a", b"jello")
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path / "other"))
    with pytest.raises(StoredDamageError, match=r"d/a .*other bytes"):
        Bucket(files.uri).local_folder("d", noted)


def test_a_file_that_is_moved_is_under_its_other_name_alone(any_files: Bucket):
    files = any_files
    files.create_if_absent("d/a", b"hello")
    files.move("d/a", "d/b")
    files.move("d/a", "d/b")  # Another process has moved it.
    assert (files.read("d/b"), list(files.listing("d"))) == (b"hello", ["b"])


def test_errors_are_not_absence(files: Bucket, server: GCS):
    files.create_if_absent("x", b"one")
    server.fail(Rule(action="answer", status=503, times=None))
    for look in (files.read, files.stat, files.listing, files.folders, files.total_stat):
        with pytest.raises(BucketError, match=f"{server.uri}: "):
            look("x")


@pytest.mark.parametrize("action", ["stall", "stall_reply"])
def test_a_server_that_hangs_is_asked_again(
    files: Bucket, server: GCS, monkeypatch: pytest.MonkeyPatch, action: str
):
    noted = written(files, "d", a=b"hello" * 9)
    files.publish_folder("d", noted, {})
    module = "google_client._TIMEOUT" if server.scheme == "gs" else "obstore_client._READ_TIMEOUT"
    monkeypatch.setattr(f"infra.store.objects.{module}", 0.3)
    slow = Bucket(files.uri)
    server.fail(Rule(action=action, verb="media", seconds=3.0))
    began = time.monotonic()
    assert slow.read("d/a") == b"hello" * 9
    assert time.monotonic() - began < 2.5


def test_the_clock_is_the_servers(files: Bucket, server: GCS):
    server.skew_s = 1000.0
    files.create_if_absent("x", b"one")
    assert abs(files.now() - files.stat("x").modified) < 3e9


@pytest.mark.parametrize("uri", ["gs://b", "s3://", "gcs://bucket", "az://Bucket/x"])
def test_what_names_no_bucket_is_refused(uri: str):
    with pytest.raises(ValueError, match=r"store .*gs://bucket/prefix"):
        Bucket(uri)


def test_a_bucket_that_is_not_there_is_an_error_in_one_line(server: GCS):
    absent = f"{server.scheme}://absent"
    with pytest.raises(OSError, match=f"no bucket {absent};") as caught:
        Bucket(f"{absent}/x")
    assert "\n" not in str(caught.value)


def test_an_object_gets_another_name_once_and_no_other_bytes_take_it(any_files: Bucket):
    files = any_files
    files.create_if_absent("work/a", b"one")
    files.create_if_absent("work/b", b"other")
    receipt = files.link("work/a", "shards/0", File(sha256="0" * 64, size=3))
    assert files.read("shards/0") == b"one"
    assert receipt.generation
    # The reply to the first request may be lost: the second is no error.
    assert files.link("work/a", "shards/0", File(sha256="0" * 64, size=3)) == receipt
    with pytest.raises(BucketError, match=r"shards/0 .*other bytes"):
        files.link("work/b", "shards/0", File(sha256="1" * 64, size=5))
    assert files.read("shards/0") == b"one"


def test_a_server_may_leave_the_size_of_an_empty_object_out(gcs: GCS, tmp_path: Path):
    files, gcs.api.omits_zero = Bucket("gs://testing/some/where"), True
    contents = written(files, "folder", empty=b"", full=b"full")
    files.publish_folder("folder", contents, {})
    asked = f"{gcs.url}/storage/v1/b/testing/o/some%2Fwhere%2Ffolder%2Fempty"
    with urllib.request.urlopen(asked) as answer:
        assert "size" not in json.load(answer)  # The server does leave it out.
    assert files.stat("folder/empty").size == 0
    assert files.sizes("folder", contents) == {"empty": 0, "full": 4}
    assert files.link("folder/empty", "linked", contents["empty"]).file.size == 0
    files.download_file("folder/empty", contents["empty"], tmp_path / "empty")
    assert (tmp_path / "empty").read_bytes() == files.open("folder/empty").read() == b""


def test_large_files_go_where_the_clients_other_requests_go(
    files: Bucket, server: GCS, tmp_path: Path
):
    (tmp_path / "large").write_bytes(bytes(6 * 2**20))
    files.upload_file(tmp_path / "large", "large")
    assert server.requests()["chunk"]["requests"] == 1
    assert files.stat("large").size == 6 * 2**20
