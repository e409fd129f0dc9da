"""Buckets that delete on no condition: markers, races, ETags that are no digests, errors."""

import threading
import types
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from infra.store.block_reader import RangeError
from infra.store.manifest import File
from infra.store.objects.bucket import Bucket, BucketError
from infra.store.objects.obstore_client import MARKER
from tests.gcs.faults import Rule
from tests.gcs.objects import Content
from tests.s3.api import SECRET_KEY
from tests.s3.server import S3


@pytest.fixture(autouse=True)
def _no_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path))
    monkeypatch.setattr(
        "infra.store.objects.object_client.time", types.SimpleNamespace(sleep=print)
    )
    monkeypatch.setattr("infra.store.objects.obstore_client._RETRIES", {"max_retries": 1})


@pytest.fixture
def files(s3: S3) -> Bucket:
    return Bucket("s3://testing/some/where")


def objects(s3: S3) -> dict[str, bytes]:
    """Returns what is in the bucket, markers and all."""
    there = s3.store.bucket("testing").objects.items()
    return {name.removeprefix("some/where/"): found.data for name, found in there}


NAMES, TEXTS = ("r/x", "r/y"), (b"one", b"two", b"n" * len(MARKER))
NAME, TEXT = st.sampled_from(NAMES), st.sampled_from(TEXTS)
STEP = st.one_of(
    st.tuples(st.just("create_if_absent"), NAME, TEXT),
    st.tuples(st.just("compare_and_swap"), NAME, TEXT, TEXT),
    st.tuples(st.just("compare_and_delete"), NAME, TEXT),
    st.tuples(st.just("put"), NAME, TEXT),
    st.tuples(st.just("remove"), NAME),
)


class Model:
    """What the verbs promise, on a dictionary."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def create_if_absent(self, name: str, data: bytes) -> bool:
        return self.files.setdefault(name, data) == data

    def compare_and_swap(self, name: str, old: bytes, new: bytes) -> bool:
        if self.files.get(name) != old:
            return False
        self.files[name] = new
        return True

    def compare_and_delete(self, name: str, old: bytes) -> bool:
        if self.files.get(name) != old:
            return False
        del self.files[name]
        return True

    def put(self, name: str, data: bytes) -> None:
        self.files[name] = data

    def remove(self, name: str) -> None:
        self.files.pop(name, None)


@settings(max_examples=60)
@given(steps=st.lists(st.tuples(st.sampled_from([0, 1]), STEP), max_size=12), digests=st.booleans())
def test_what_is_deleted_is_absent_by_every_verb(steps, digests: bool):
    with pytest.MonkeyPatch.context() as patch, S3() as s3:
        s3.bucket("testing")
        s3.api.etags_are_digests = digests
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        model, clients = Model(), [Bucket("s3://testing/some/where") for _ in range(2)]
        for client, (verb, *arguments) in steps:
            assert getattr(clients[client], verb)(*arguments) == getattr(model, verb)(*arguments)
            seen = clients[1 - client]
            names = {name.removeprefix("r/"): len(data) for name, data in model.files.items()}
            assert {n: stat.size for n, stat in seen.listing("r").items()} == names
            assert {n: stat.size for n, stat in seen.walk("r")} == names
            assert seen.sizes("r", ["x", "y"]) == names
            assert seen.total_stat("r").size == sum(names.values())
            for name in NAMES:
                if name in model.files:
                    assert seen.read(name) == model.files[name]
                    assert seen.stat(name).size == len(model.files[name])
                    continue
                for look in (seen.read, seen.stat, seen.open):
                    with pytest.raises(FileNotFoundError):
                        look(name)
                with pytest.raises(FileNotFoundError):
                    seen.link(name, "elsewhere", File(sha256="0" * 64, size=1))


@pytest.mark.parametrize("digests", [True, False])
@pytest.mark.parametrize(
    "fault", [None, Rule(action="lose", verb="upload", probability=0.03, times=None)]
)
def test_of_many_that_take_and_give_back_one_holds_it_at_a_time(s3: S3, digests: bool, fault: Rule):
    s3.api.etags_are_digests = digests
    if fault is not None:
        s3.fail(fault)
    holders: list[int] = []
    crowds: list[list[int]] = []
    taken = [0] * 6

    def take(i: int) -> None:
        own = Bucket("s3://testing/some/where")
        number = 0
        while taken[i] < 5:
            number += 1
            text = f"{i} {number}".encode()
            if not own.create_if_absent("lease", text):
                continue
            holders.append(i)
            crowds.append(list(holders))
            taken[i] += 1
            renewed = text + b" renewed"
            assert own.compare_and_swap("lease", text, renewed)
            holders.remove(i)
            # It may say no if the reply was lost, and another has taken the lease since.
            assert own.compare_and_delete("lease", renewed) or fault is not None
            # A late reply, or a second try, of what is over already.
            assert not own.compare_and_swap("lease", text, renewed)

    racers = [threading.Thread(target=take, args=(i,)) for i in range(6)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert taken == [5] * 6  # Nobody failed.
    assert [crowd for crowd in crowds if len(crowd) > 1] == []
    assert objects(s3) == {"lease": MARKER}


@pytest.mark.parametrize("digests", [True, False])
def test_a_late_request_changes_nothing_that_came_since(files: Bucket, s3: S3, digests: bool):
    s3.api.etags_are_digests = digests
    late = Bucket(files.uri)

    def late_reply(skip: int, verb: str, *arguments: object) -> list[bool]:
        """Begins a call whose write arrives a second late, after `skip` others that do not."""
        s3.clear()
        s3.fail(Rule(action="stall", verb="upload", skip=skip, seconds=1.0))
        replies: list[bool] = []
        thread = threading.Thread(target=lambda: replies.append(getattr(late, verb)(*arguments)))
        thread.start()
        while s3.faults.fired() != [1]:
            thread.join(0.01)
        threads.append(thread)
        return replies

    threads: list[threading.Thread] = []
    files.create_if_absent("x", b"one")
    deleted = late_reply(0, "compare_and_delete", "x", b"one")
    assert files.compare_and_swap("x", b"one", b"two")
    threads.pop().join()
    assert (deleted, files.read("x")) == ([False], b"two")
    assert files.compare_and_delete("x", b"two")
    created = late_reply(1, "create_if_absent", "x", b"late")  # In place of the marker.
    assert files.create_if_absent("x", b"three")
    threads.pop().join()
    assert (created, files.read("x")) == ([False], b"three")


def test_a_lost_reply_to_a_deletion_is_looked_up(files: Bucket, s3: S3):
    for action in ("lose", "lose_answer"):
        files.create_if_absent("x", b"one")
        s3.fail(Rule(action=action, verb="upload"))
        assert files.compare_and_delete("x", b"one")
        with pytest.raises(FileNotFoundError):
            files.read("x")


def test_a_folder_is_deleted_with_its_markers(files: Bucket, s3: S3):
    files.create_if_absent("d/x", b"one")
    files.create_if_absent("d/y", b"two")
    files.compare_and_delete("d/x", b"one")
    files.remove("d")
    assert objects(s3) == {}


def test_markers_cost_no_requests_where_an_etag_is_a_digest(files: Bucket, s3: S3):
    for name in ("x", "y", "z"):
        files.create_if_absent(f"d/{name}", b"one")
        files.compare_and_delete(f"d/{name}", b"one")
    s3.clear()
    assert files.listing("d") == {}
    assert {verb: count["requests"] for verb, count in s3.requests().items()} == {"list": 1}
    s3.api.etags_are_digests = False
    s3.clear()
    assert files.listing("d") == files.listing("d") == {}
    assert s3.requests()["media"]["requests"] == 3 + 1  # Of the first listing; see the next test.


def test_bytes_are_compared_with_an_etag_as_long_as_it_is_a_digest(files: Bucket, s3: S3):
    files.create_if_absent("x", b"one")
    s3.fail(Rule(action="corrupt", verb="media"))
    assert files.read("x") == b"one"
    s3.clear()
    s3.api.etags_are_digests = False
    for requests in (2, 3):  # It is read again once, and believed from then on.
        assert files.read("x") == b"one"
        assert s3.requests()["media"]["requests"] == requests


def test_a_file_read_in_blocks_is_compared_with_an_etag_as_long_as_it_is_a_digest(
    files: Bucket, s3: S3
):
    data = bytes(range(256)) * 100
    files.put("x", data)
    s3.fail(Rule(action="corrupt", verb="media"))
    with pytest.raises(RangeError, match="do not match its checksum"):
        files.open("x").read()
    s3.clear()
    s3.api.etags_are_digests = False
    for requests in (2, 3):
        assert files.open("x").read() == data
        assert s3.requests()["media"]["requests"] == requests


def test_a_file_that_is_replaced_while_it_is_read_is_no_bucket_without_digests(
    files: Bucket, s3: S3
):
    files.put("x", b"one")
    file = files.open("x")
    files.put("x", b"two")
    with pytest.raises(RangeError, match="do not match its checksum"):
        file.read()
    s3.fail(Rule(action="corrupt", verb="media"))
    assert files.read("x") == b"two"


def test_a_file_as_long_as_a_marker_that_comes_again_is_shown(files: Bucket, s3: S3):
    data, stale = b"n" * len(MARKER), {}
    files.create_if_absent("d/x", data)
    s3.fail(Rule(action="stall", verb="media", seconds=1.0))
    listing = threading.Thread(target=lambda: stale.update(files.listing("d")))
    listing.start()  # It sees the length, and asks what it is; meanwhile the file is deleted.
    while s3.faults.fired() != [1]:
        listing.join(0.01)
    assert Bucket(files.uri).compare_and_delete("d/x", data)
    listing.join()
    files.create_if_absent("d/x", data)
    assert list(files.listing("d")) == ["x"]


def test_what_s3_does_not_copy_in_one_request_goes_through_this_machine(
    files: Bucket, s3: S3, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("infra.store.objects.obstore_client.LARGEST_COPY", 10**6)
    data = bytes(range(256)) * 10_000
    s3.store.put("testing", "some/where/a", Content.of(data))
    files.link("a", "b", File(sha256="0" * 64, size=len(data)))
    assert objects(s3)["b"] == data
    assert "copy" not in s3.requests()


def test_who_may_only_read_sees_the_time_and_may_not_write(files: Bucket, s3: S3):
    files.create_if_absent("x", b"one")
    s3.api.read_only = True
    assert abs(files.now() - files.stat("x").modified) < 60e9
    assert files.read("x") == b"one"
    with pytest.raises(BucketError, match=r"403 AccessDenied \(Access Denied\); check AWS_ACCESS"):
        files.put("y", b"two")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"AWS_ACCESS_KEY_ID": "other"},
            r"403 InvalidAccessKeyId \(The AWS Access Key Id you provided does not exist in our "
            r"records\); check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and their rights",
        ),
        (
            {"AWS_REGION": "eu-west-1"},
            r"400 Authorization.*; set AWS_REGION to the bucket's region",
        ),
        (
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
            "no answer from http://127.0.0.1:9; check AWS_ENDPOINT_URL and the network",
        ),
    ],
    ids=["key", "region", "endpoint"],
)
def test_what_is_wrong_is_said_in_one_line_without_the_secret(
    s3: S3, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], message: str
):
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BucketError, match=f"s3://testing: {message}") as caught:
        Bucket("s3://testing/x")
    assert "\n" not in str(caught.value)
    assert SECRET_KEY not in str(caught.value)


def test_without_credentials_they_are_asked_for(s3: S3, monkeypatch: pytest.MonkeyPatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    # The machine's identity is asked for next; here of a server that has none.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"{s3.url}/169.254.169.254")
    with pytest.raises(BucketError, match="s3://testing: no credentials; set AWS_ACCESS_KEY_ID"):
        Bucket("s3://testing/x")
    with pytest.raises(BucketError, match="az://testing: no credentials; set AZURE_STORAGE_ACC"):
        Bucket("az://testing/x")


def test_a_bucket_may_be_of_two_providers(s3: S3):
    here = Bucket("s3://testing/x")
    with S3() as other, pytest.MonkeyPatch.context() as patch:
        other.bucket("testing")
        patch.setenv("AWS_ENDPOINT_URL", other.url)
        assert Bucket("s3://testing/x").state != here.state
    assert Bucket("s3://testing/x").state == here.state
