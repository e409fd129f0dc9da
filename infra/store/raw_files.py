"""Digests of files, remembered so that no unchanged file is read twice on a machine."""

import contextlib
import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

SETTLED_NS = 2_000_000_000
"""Age from which a file's time of change identifies its content [ns]. Two writes within one tick of
the file system's clock, which is 2 s on FAT, leave the same time."""

_CHUNK = 1000
"""Files looked up, read and remembered together; an interrupted run keeps all finished groups."""

_BUSY_S = 60.0
"""Longest wait for another process to finish its write [s]."""

_TABLE = """
CREATE TABLE IF NOT EXISTS files (
    path BLOB PRIMARY KEY, size INTEGER, mtime_ns INTEGER, inode TEXT, sha256 TEXT,
    ctime_ns INTEGER
) WITHOUT ROWID
"""
_ADD_CTIME = "ALTER TABLE files ADD COLUMN ctime_ns INTEGER"
"""For a memory of before 0.3.0, whose files need not be read again: NULL equals any time."""


class Digest(NamedTuple):
    """Content of a file: sha256 [hex] and size [bytes]."""

    sha256: str
    size: int


class _FileState(NamedTuple):
    """A file's state; while it is unchanged, so is the file's content."""

    # A tool that edits in place, such as `exiftool -P`, keeps size, inode and mtime, which it can
    # set. Nobody can set ctime: the kernel does, at every change.
    size: int
    mtime_ns: int
    ctime_ns: int | None
    inode: str  # May exceed the 63 bits of an SQLite integer.

    @classmethod
    def of(cls, stat: os.stat_result) -> "_FileState":
        return cls(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, str(stat.st_ino))

    @classmethod
    def on_device(cls, stat: os.stat_result) -> "_FileState":
        """The state of a file that another disk in the same place does not have."""
        return cls.of(stat)._replace(inode=f"{stat.st_dev}:{stat.st_ino}")

    def is_still(self, now: "_FileState") -> bool:
        """Whether a file that had this state is unchanged in its state now."""
        return now._replace(ctime_ns=self.ctime_ns) == self and self.ctime_ns in (
            None,
            now.ctime_ns,
        )


class RawDigestCache:
    """A memory of digests by path, size, mtime, ctime and inode, shared by processes.

    It may be deleted at any time: then files are read again.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = ":memory:",
        busy_s: float = _BUSY_S,
        *,
        by_device: bool = False,
    ) -> None:
        """Opens the SQLite file `path`, made when first written; by default nothing is kept.

        Args:
          path: the file.
          busy_s: longest wait for another process to finish its write [s].
          by_device: whether files are read again where their disk has another number, as a disk
            over a network may have after each start.
        """
        self._state_of = _FileState.on_device if by_device else _FileState.of
        self._path, self._busy_s = os.fspath(path), busy_s
        self._connection: sqlite3.Connection | None = None

    def digests(self, paths: Sequence[Path]) -> list[Digest]:
        """Returns the digest of each file, and reads only those that are new or changed.

        Raises:
          OSError: if a file is missing or cannot be read.
        """
        digests: list[Digest] = []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for start in range(0, len(paths), _CHUNK):
                chunk = [Path(os.path.abspath(path)) for path in paths[start : start + _CHUNK]]
                # Looked up before the stat: a file that changes in between has another state than
                # the saved one, and is read.
                saved = self._load_digests(chunk)
                states = [self._state_of(path.stat()) for path in chunk]
                current = {
                    path: saved[path][1]
                    for path, state in zip(chunk, states, strict=True)
                    if path in saved and saved[path][0].is_still(state)
                }
                changed = [path for path in dict.fromkeys(chunk) if path not in current]
                read = {
                    path: (at_rest and self._state_of(at_rest), digest)
                    for path, (at_rest, digest) in zip(
                        changed, pool.map(_digest_raw_file, changed), strict=True
                    )
                }
                state_of = dict(zip(chunk, states, strict=True))
                undated = [path for path in current if saved[path][0].ctime_ns is None]
                self._save_digests(read | {p: (state_of[p], current[p]) for p in undated})
                current |= {path: digest for path, (_, digest) in read.items()}
                digests += [current[path] for path in chunk]
        return digests

    def prune(self, is_there: Callable[[Path], bool]) -> None:
        """Forgets the files that are no longer there."""
        if self._path != ":memory:" and not os.path.exists(self._path):
            return
        try:
            rows = self._open_digest_database().execute("SELECT path FROM files").fetchall()
            gone = [(path,) for (path,) in rows if not is_there(Path(os.fsdecode(path)))]
            with self._open_digest_database() as connection:
                connection.executemany("DELETE FROM files WHERE path = ?", gone)
        except sqlite3.Error as error:
            self._warn_unusable(error)

    def close(self) -> None:
        """Closes the SQLite file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _load_digests(self, paths: Sequence[Path]) -> dict[Path, tuple[_FileState, Digest]]:
        marks = ",".join("?" * len(paths))
        columns = "path, size, mtime_ns, ctime_ns, inode, sha256"
        query = f"SELECT {columns} FROM files WHERE path IN ({marks})"
        try:
            rows = (
                self._open_digest_database()
                .execute(query, [os.fsencode(path) for path in paths])
                .fetchall()
            )
        except sqlite3.Error as error:
            self._warn_unusable(error)
            return {}
        return {
            Path(os.fsdecode(path)): (_FileState(size, mtime, ctime, inode), Digest(sha256, size))
            for path, size, mtime, ctime, inode, sha256 in rows
        }

    def _save_digests(self, read: dict[Path, tuple[_FileState | None, Digest]]) -> None:
        rows = [
            (os.fsencode(path), *state, digest.sha256)
            for path, (state, digest) in read.items()
            if state is not None
        ]
        try:
            with self._open_digest_database() as connection:
                connection.executemany(
                    "INSERT OR REPLACE INTO files (path, size, mtime_ns, ctime_ns, inode, sha256) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    rows,
                )
        except sqlite3.Error as error:
            self._warn_unusable(error)

    def _open_digest_database(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._path != ":memory:":
                Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self._path, timeout=self._busy_s)
            self._connection.execute(_TABLE)
            names = {row[1] for row in self._connection.execute("PRAGMA table_info(files)")}
            if "ctime_ns" not in names:
                with contextlib.suppress(sqlite3.OperationalError):  # Another process was first.
                    self._connection.execute(_ADD_CTIME)
        return self._connection

    def _warn_unusable(self, error: sqlite3.Error) -> None:
        # Without this memory a run takes longer, but it neither fails nor gets a wrong digest.
        logging.getLogger(__name__).warning(
            "%s cannot be used (%s): files are read again. Delete it.", self._path, error
        )


def _digest_raw_file(path: Path) -> tuple[os.stat_result | None, Digest]:
    """Returns a file's digest, and its state if the next change is sure to alter that."""
    with path.open("rb") as file:
        # Why a file that was just written is not remembered. A file system's clock has ticks:
        #
        #   t = 10.1  written "1"   mtime 10
        #   t = 10.4  read, digest of "1"
        #   t = 10.8  written "2"   mtime 10 still, and the same size: the state shows no change
        #
        # So the state counts only if the file was at rest for two seconds before it was read, and
        # did not change while it was.
        before = os.fstat(file.fileno())
        began = time.time_ns()
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
        after = os.fstat(file.fileno())
    is_same = _FileState.of(before) == _FileState.of(after)
    settled = is_same and began - before.st_mtime_ns > SETTLED_NS
    return before if settled else None, Digest(sha256, size)
