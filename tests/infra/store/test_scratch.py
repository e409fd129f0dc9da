"""Progress that outlives its machine, because a copy of it is in the store."""

from collections.abc import Callable
from pathlib import Path

import pytest

from infra.store import gc
from infra.store.manifest import Recipe
from infra.store.scratch import Scratch
from infra.store.store import Store
from tests.gcs.server import GCS

KEY = Recipe(kind="checkpoint", name="stage1", code="c0de").key


@pytest.fixture
def machine(server: GCS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Store]:
    """Returns the store as a machine of a name sees it."""

    def named(name: str) -> Store:
        monkeypatch.setenv("PARCEL_STATE", str(tmp_path / name))
        return Store(f"{server.uri}/s")

    return named


def bytes_in(server: GCS) -> int:
    return sum(count["bytes_in"] for count in server.requests().values())


def test_another_machine_goes_on_from_the_copy(machine: Callable[[str], Store], server: GCS):
    with machine("a").lock(KEY) as first:
        (first.path / "resume" / "1").mkdir(parents=True)
        (first.path / "resume" / "1" / "state").write_bytes(b"1" * 100_000)
        first.save()
        before = bytes_in(server)
        (first.path / "log").write_text("more")
        first.save()
        assert bytes_in(server) - before < 5000  # What has not changed is not sent again.
        (first.path / "unsaved").touch()
    with machine("b").lock(KEY) as second:
        assert (second.path / "resume" / "1" / "state").read_bytes() == b"1" * 100_000
        assert (second.path / "log").read_text() == "more"
        assert not (second.path / "unsaved").exists()
        assert first.path.name != second.path.name
        (second.path / "resume" / "1" / "state").unlink()
        (second.path / "log").write_text("gone on")
        second.save()
    names = server.store.bucket("testing").names
    assert [name for name in names if "scratch" in name and first.path.name in name] == []
    assert sum("/files/" in name for name in names) == 1
    with machine("a").lock(KEY) as third:  # Its own folder is older than the copy.
        assert (third.path / "log").read_text() == "gone on"
        third.clear()
    assert not any("scratch" in name for name in server.store.bucket("testing").names)


def test_a_stopped_machine_that_wakes_finds_its_step_taken(
    machine: Callable[[str], Store], server: GCS
):
    with machine("a").lock(KEY, token="first") as first:
        (first.path / "log").write_text("saved")
        first.save()
        with machine("b").lock(KEY, lost=["first"]) as second:  # It does not wait.
            assert (second.path / "log").read_text() == "saved"
            with pytest.raises(FileNotFoundError, match="another process's"):
                first.save()
            second.clear()
        assert not any("scratch" in name for name in server.store.bucket("testing").names)


def test_its_own_machine_needs_no_copy(machine: Callable[[str], Store], server: GCS):
    with machine("a").lock(KEY) as first:
        (first.path / "log").write_text("saved")
        first.save()
        (first.path / "log").write_text("and more")
    server.clear()
    with machine("a").lock(KEY) as second:
        assert (second.path / "log").read_text() == "and more"
    assert server.requests()["media"]["bytes_out"] < 2000


def test_others_read_progress_here_or_its_copy(machine: Callable[[str], Store]):
    def read(name: str) -> bytes:
        return Scratch(machine(name).files, KEY, "reader").read("log")

    with pytest.raises(FileNotFoundError):
        read("a")
    with machine("a").lock(KEY) as first:
        (first.path / "log").write_text("saved")
        first.save()
        (first.path / "log").write_text("newer")
        assert (read("a"), read("b")) == (b"newer", b"saved")


def test_a_copy_that_is_half_there_is_none(machine: Callable[[str], Store], server: GCS):
    store = machine("a")
    store.files.create_if_absent(f"scratch/{KEY}/0123/files/{'0' * 64}", b"x")
    with machine("b").lock(KEY) as second:
        assert list(second.path.iterdir()) == []


def test_copies_that_nobody_goes_on_with_are_garbage(machine: Callable[[str], Store]):
    store = machine("a")
    with store.lock(KEY) as first:
        (first.path / "log").write_text("saved")
        first.save()
        assert gc.find_garbage(store, older_than=0) == []
    other = machine("b")
    assert [(found.sort, found.name) for found in gc.delete_garbage(other, older_than=0)] == [
        ("copy of scratch", KEY)
    ]
    assert other.files.folders("scratch") == []
