"""The verbs: created once, compared and replaced in one act, errors told apart from absence."""

import errno
import threading
from pathlib import Path

import pytest

from infra.store.disk import Disk
from tests.infra.store.faults import BROKEN, STALE, fail


@pytest.fixture
def files(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def test_file_is_created_once(files: Disk):
    assert files.create_if_absent("a/b/x", b"one")
    assert not files.create_if_absent("a/b/x", b"two")
    assert files.read("a/b/x") == b"one"
    assert list(files.listing("a/b")) == ["x"]
    assert list(files.listing("partial")) == []


@pytest.mark.parametrize("error", [BROKEN, errno.EEXIST])
def test_lost_reply_to_a_creation_is_looked_up(
    files: Disk, monkeypatch: pytest.MonkeyPatch, error: int
):
    fail(monkeypatch, "link", error, when=lambda path: path.endswith("x"), after=True)
    assert files.create_if_absent("a/x", b"one")
    assert not files.create_if_absent("a/x", b"two")


@pytest.mark.parametrize(("call", "act"), [("link", "create"), ("replace", "swap")])
def test_error_that_left_nothing_is_raised(
    files: Disk, monkeypatch: pytest.MonkeyPatch, call: str, act: str
):
    files.create_if_absent("a/x", b"one")
    name = "a/y" if act == "create" else "a/x"
    fail(monkeypatch, call, BROKEN, when=lambda path: path.endswith(name))
    with pytest.raises(OSError, match=name):
        files.create_if_absent(name, b"two") if act == "create" else files.compare_and_swap(
            name, b"one", b"two"
        )
    assert files.read("a/x") == b"one"
    assert list(files.listing("a")) == ["x"]


def test_replacing_and_deleting_ask_for_what_is_there(files: Disk):
    files.create_if_absent("x", b"one")
    assert not files.compare_and_swap("x", b"other", b"two")
    assert files.compare_and_swap("x", b"one", b"two")
    assert not files.compare_and_delete("x", b"one")
    assert files.compare_and_delete("x", b"two")
    assert not files.compare_and_delete("x", b"two")
    assert not files.compare_and_swap("x", b"two", b"three")
    with pytest.raises(FileNotFoundError):
        files.read("x")


def test_no_change_is_lost_between_many_writers(tmp_path: Path):
    files, won = Disk(tmp_path, durable=False), []
    files.create_if_absent("number", b"0")

    def count() -> None:
        own = Disk(tmp_path, durable=False)
        for _ in range(200):
            there = own.read("number")
            if own.compare_and_swap("number", there, str(int(there) + 1).encode()):
                won.append(1)

    writers = [threading.Thread(target=count) for _ in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert int(files.read("number")) == len(won) > 200


def test_version_tells_a_replaced_file_of_the_same_size(files: Disk):
    files.create_if_absent("x", b"one")
    before = files.stat("x")
    files.compare_and_swap("x", b"one", b"two")
    assert files.stat("x").size == before.size
    assert files.stat("x").version != before.version


def test_folder_that_cannot_be_listed_is_not_an_empty_one(
    files: Disk, monkeypatch: pytest.MonkeyPatch
):
    assert files.listing("none") == {}
    assert files.folders("none") == []
    fail(monkeypatch, "scandir", STALE, when=lambda path: path.endswith("none"))
    for look in (files.listing, files.folders):
        with pytest.raises(OSError, match="none"):
            look("none")
