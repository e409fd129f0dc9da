"""Which databases are put aside: those that SQLite cannot read, and no others."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.prefect.database import put_damaged_database_aside


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database of some pages."""
    path = tmp_path / "prefect" / "prefect.db"
    path.parent.mkdir()
    with sqlite3.connect(path) as made:
        made.execute("PRAGMA journal_mode = WAL")
        made.execute("CREATE TABLE runs (name TEXT)")
        made.executemany("INSERT INTO runs VALUES (?)", [(f"{n}" * 90,) for n in range(900)])
    made.close()
    assert path.stat().st_size > 20 * 4096
    return path


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def without_last_page(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)


def begun(path: Path) -> None:
    os.truncate(path, 10)


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def odd_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(os.urandom(4096))


@pytest.mark.parametrize("damage", [half, without_last_page, begun, zeros, odd_page])
def test_a_damaged_one_is_put_aside_whole_with_one_line(
    database: Path, damage: Callable[[Path], None], tmp_path: Path
):
    memo = database.with_name("memo_store.toml")
    memo.touch()
    damage(database)
    bytes_of_it = database.read_bytes()
    line = put_damaged_database_aside(tmp_path)
    assert line.startswith(f"{database} is damaged (")
    (aside,) = database.parent.glob("prefect.db.damaged-*")
    assert aside.name in line
    assert "`parcel lineage rebuild`" in line
    assert "\n" not in line
    assert aside.read_bytes() == bytes_of_it
    assert not database.exists()
    assert not memo.exists()
    assert put_damaged_database_aside(tmp_path) == ""


def test_a_whole_one_stays_with_what_its_log_of_writes_has(database: Path, tmp_path: Path):
    # As a killed server leaves it: writes are in its log, the last of which is cut off.
    killed = tmp_path / "killed" / "prefect"
    killed.mkdir(parents=True)
    with sqlite3.connect(database) as writing:
        writing.execute("INSERT INTO runs VALUES ('in the log')")
        writing.commit()
        for ending in ("", "-wal"):
            shutil.copy(f"{database}{ending}", killed)
    writing.close()
    log = killed / "prefect.db-wal"
    os.truncate(log, log.stat().st_size - 100)
    assert put_damaged_database_aside(killed.parent) == ""
    assert [path.name for path in killed.glob("*.damaged*")] == []


def test_one_that_is_locked_or_empty_stays(database: Path, tmp_path: Path):
    with sqlite3.connect(database) as writing:
        writing.execute("PRAGMA locking_mode = EXCLUSIVE")
        writing.execute("BEGIN EXCLUSIVE")
        assert put_damaged_database_aside(tmp_path) == ""
    writing.close()
    database.unlink()
    assert put_damaged_database_aside(tmp_path) == ""
    database.touch()
    assert put_damaged_database_aside(tmp_path) == ""
