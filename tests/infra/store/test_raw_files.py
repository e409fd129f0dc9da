"""Raw files are read once, and again as soon as they change."""

import hashlib
import multiprocessing
import os
import sqlite3
from pathlib import Path

import pytest

from infra.store import raw_files
from infra.store.raw_files import Digest, RawDigestCache

LONG_AGO = 1_600_000_000


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [write(tmp_path / f"raw/{name}", os.fsencode(name)) for name in ("a", "b", "c\udcff")]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read from now on."""
    names: list[str] = []
    whole = raw_files._digest_file

    def noting(path: Path):
        names.append(path.name)
        return whole(path)

    monkeypatch.setattr(raw_files, "_digest_file", noting)
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


@pytest.mark.parametrize("change", ["size", "time", "replaced"])
def test_what_changes_is_read_again(
    tmp_path: Path, files: list[Path], read: list[str], change: str
):
    known = RawDigestCache(tmp_path / "raw.sqlite")
    known.digests(files)
    read.clear()
    if change == "replaced":  # Same size, same time: only the inode tells.
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
