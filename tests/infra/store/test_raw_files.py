"""Raw files are read once, and again as soon as they change."""

import contextlib
import hashlib
import multiprocessing
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from infra.store.raw_files import Digest, RawDigestCache
from infra.store.raw_fingerprint import RawFingerprint

LONG_AGO = 1_600_000_000


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [write(tmp_path / f"raw/{name}", os.fsencode(name)) for name in ("a", "b", "c\udcff")]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read from now on."""
    names: list[str] = []
    whole = hashlib.file_digest

    def noting(file: Any, digest: str) -> Any:
        names.append(Path(file.name).name)
        return whole(file, digest)

    monkeypatch.setattr(hashlib, "file_digest", noting)
    return names


def write(path: Path, data: bytes, *, mtime: int = LONG_AGO) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (mtime, mtime))
    return path


def true_digest(path: Path) -> Digest:
    data = path.read_bytes()
    return Digest(hashlib.sha256(data).hexdigest(), len(data))


def test_unchanged_files_are_read_once(tmp_path: Path, files: list[Path], read: list[str]):
    for _ in range(3):  # Each time as another process would, with nothing in memory.
        known = RawDigestCache(tmp_path / "cache/raw.sqlite")
        assert known.digests([*files, files[0]]) == [true_digest(p) for p in (*files, files[0])]
        known.close()
    assert sorted(read) == ["a", "b", "c\udcff"]


@pytest.mark.parametrize("change", ["size", "time", "replaced", "in place"])
def test_what_changes_is_read_again(
    tmp_path: Path, files: list[Path], read: list[str], change: str
):
    known = RawDigestCache(tmp_path / "raw.sqlite")
    known.digests(files)
    read.clear()
    if change == "in place":  # Same size, times as they were, same inode: only ctime tells.
        before = files[1].stat()
        with files[1].open("r+b") as file:
            file.write(b"x")
        os.utime(files[1], ns=(before.st_atime_ns, before.st_mtime_ns))
        after = files[1].stat()
        assert (after.st_size, after.st_mtime_ns, after.st_ino) == (
            before.st_size, before.st_mtime_ns, before.st_ino
        )  # fmt: skip
    elif change == "replaced":  # Same size, same time: only the inode tells.
        other = write(tmp_path / "raw/other", b"x")
        other.replace(files[1])
    else:
        data, mtime = (b"longer", LONG_AGO) if change == "size" else (b"x", LONG_AGO + 1)
        write(files[1], data, mtime=mtime)
    assert known.digests(files) == [true_digest(p) for p in files]
    assert read == ["b"]


def test_files_just_written_are_not_remembered(tmp_path: Path, files: list[Path], read: list[str]):
    os.utime(files[0])  # A second write may follow within the same tick of the clock.
    known = RawDigestCache(tmp_path / "raw.sqlite")
    known.digests(files)
    known.digests(files)
    assert sorted(read) == ["a", "a", "b", "c\udcff"]


def test_relative_paths_are_those_of_the_moment(
    tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch
):
    write(tmp_path / "elsewhere/a", b"z")
    known = RawDigestCache(tmp_path / "raw.sqlite")
    for folder in ("raw", "elsewhere"):
        monkeypatch.chdir(tmp_path / folder)
        assert known.digests([Path("a")]) == [true_digest(tmp_path / folder / "a")]


def test_a_missing_file_is_an_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="absent"):
        RawDigestCache().digests([tmp_path / "absent"])


def test_a_broken_memory_costs_time_only(tmp_path: Path, files: list[Path], read: list[str]):
    (tmp_path / "raw.sqlite").write_bytes(b"no database" * 100)
    known = RawDigestCache(tmp_path / "raw.sqlite")
    assert known.digests(files) == [true_digest(path) for path in files]
    assert len(read) == 3


def remember(memory: Path, paths: list[Path]) -> None:
    for path in paths:  # A transaction each, to be in the others' way.
        RawDigestCache(memory).digests([path])


def test_processes_share_it(tmp_path: Path, read: list[str]):
    memory = tmp_path / "raw.sqlite"
    paths = [write(tmp_path / f"raw/{i:03d}", bytes([i])) for i in range(60)]
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=remember, args=(memory, paths[i::3])) for i in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    with sqlite3.connect(memory) as connection:
        assert connection.execute("SELECT count(*) FROM files").fetchone() == (60,)
    assert RawDigestCache(memory).digests(paths) == [true_digest(path) for path in paths]
    assert not read


def test_a_memory_from_before_ctime_is_used_and_dated(
    tmp_path: Path, files: list[Path], read: list[str]
):
    path = tmp_path / "raw.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as old, old:
        old.execute(
            "CREATE TABLE files (path BLOB PRIMARY KEY, size INTEGER, mtime_ns INTEGER, "
            "inode TEXT, sha256 TEXT) WITHOUT ROWID"
        )
        for file in files:
            stat, digest = file.stat(), true_digest(file)
            row = (os.fsencode(file), stat.st_size, stat.st_mtime_ns, str(stat.st_ino))
            old.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?)", (*row, digest.sha256))
    for _ in range(2):
        known = RawDigestCache(path)
        assert known.digests(files) == [true_digest(p) for p in files]
        known.close()
    assert read == []
    before = files[1].stat()
    files[1].write_bytes(b"x")
    os.utime(files[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    known = RawDigestCache(path)
    assert known.digests(files) == [true_digest(p) for p in files]
    assert read == ["b"]


def test_an_edit_in_place_changes_the_fingerprint(tmp_path: Path):
    file = write(tmp_path / "raw/a", b"a")
    before, stat = RawFingerprint(str(tmp_path)).sha256(["raw"]), file.stat()
    assert RawFingerprint(str(tmp_path)).sha256(["raw"]) == before
    file.write_bytes(b"b")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert RawFingerprint(str(tmp_path)).sha256(["raw"]) != before
