"""Copies of stored folders on this machine's disk, filled once and bounded.

    <cache>/<folder, its / as +>/…   the files, whole: a folder has its name once it is filled
    <cache>/users/<id>               what one process uses, a name a line; locked while it lives
    <cache>/.lock                    held to note a use, and to choose what goes

The least recently used folders are deleted first, and never one that a living process uses.
"""

import contextlib
import fcntl
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from infra.file_locks import lock_file

_LIMIT_GB = 200.0
"""Default of PARCEL_CACHE_GB: largest size of all copies on this disk [GB]."""

_PARTIAL = ".partial"

_ABANDONED = 86400.0
"""Age from which a folder that is being filled, or deleted, counts as abandoned [s]."""

_uses: dict[tuple[Path, int], tuple[IO[str], set[str]]] = {}
"""(cache, pid) -> this process's file of notes, and the names in it. A fork has another pid, and so
notes of its own.

They are kept until the process ends, since a caller may use a path longer than the store."""


class NodeCache:
    """Folders by name, each filled by the process that needs it first.

    Args:
      root: folder of the cache; made when first used.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._users = root, root / "users"
        self._threads = threading.RLock()

    def get(self, name: str, size: int, fill: Callable[[Path], None]) -> Path:
        """Returns a folder of the cache, which stays as long as this process does.

        If two processes fill a folder at the same time, the result of one is discarded.

        Args:
          name: name of the folder.
          size: size of the filled folder [bytes].
          fill: writes its files into an empty folder.
        """
        path = self._mark_used(name)
        # Filled under another name, and renamed when whole. So a folder that is there is complete,
        # however its filler ended:
        #
        #   <random>.partial/   being filled; nobody looks here
        #   <name>/             whole. The loser of a race fails to rename, and uses this one
        if not path.is_dir():
            self._make_room(size)
            partial = self._root / f"{uuid.uuid4().hex}{_PARTIAL}"
            partial.mkdir()
            try:
                fill(partial)
                with contextlib.suppress(OSError):  # Another was first.
                    partial.rename(path)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        return path

    def find(self, name: str) -> Path | None:
        """Returns a folder of the cache if it is there already; it stays, as with `get`."""
        path = self._mark_used(name)  # First: a folder in use is not deleted.
        return path if path.is_dir() else None

    def adopt(self, name: str, folder: Path) -> None:
        """Moves a folder into the cache that has the files which `get` would fill in."""
        path = self._mark_used(name)
        self._make_room(_folder_size(folder))
        with contextlib.suppress(OSError):  # It is there already.
            folder.rename(path)
        shutil.rmtree(folder, ignore_errors=True)

    def _mark_used(self, name: str) -> Path:
        """Notes that this process uses a folder from now on."""
        flat = name.replace("/", "+")
        path = self._root / flat
        process = self._root, os.getpid()
        # The usual case takes no lock: this process has noted the folder before.
        if process in _uses and flat in _uses[process][1]:
            return path
        with self._cache_lock():
            if process not in _uses:
                self._users.mkdir(exist_ok=True)
                file = (self._users / uuid.uuid4().hex).open("a")
                lock_file(file, fcntl.LOCK_EX)
                _uses[process] = file, set()
            file, names = _uses[process]
            file.write(f"{flat}\n")
            file.flush()
            names.add(flat)
            with contextlib.suppress(FileNotFoundError):
                # The time of the folder is that of its last use, by which `_make_room` sorts.
                os.utime(path)
        return path

    def _make_room(self, size: int) -> None:
        """Deletes folders that nobody uses, the least recently used first, for `size` bytes."""
        limit = 1e9 * float(os.environ.get("PARCEL_CACHE_GB", _LIMIT_GB))
        doomed = []
        with self._cache_lock():
            # Under the lock, so that nobody begins to use a folder between this look and the
            # rename.
            used = self._folders_in_use()
            folders = [path for path in self._root.iterdir() if path.is_dir()]
            filled = [p for p in folders if p.suffix != _PARTIAL and p != self._users]
            partial = [p for p in folders if p.suffix == _PARTIAL]
            now = time.time()
            for path in partial:
                with contextlib.suppress(FileNotFoundError):  # It has just been filled and renamed.
                    if now - path.stat().st_mtime > _ABANDONED:
                        doomed.append(path)
            sizes = {path: _folder_size(path) for path in filled}
            total = sum(sizes.values()) + size
            for path in sorted(sizes, key=lambda path: path.stat().st_mtime):
                if total > limit and path.name not in used:
                    # Renamed before it is deleted: half a folder would be taken for a whole one.
                    doomed.append(path.rename(self._root / f"{uuid.uuid4().hex}{_PARTIAL}"))
                    total -= sizes[path]
        # Without the lock: deleting many gigabytes takes long, and others only want to note a use.
        for path in doomed:
            shutil.rmtree(path, ignore_errors=True)

    def _folders_in_use(self) -> set[str]:
        """Returns the folders that living processes use, and deletes the notes of dead ones.

        A process keeps its notes locked, and the kernel frees the lock when the process ends.
        """
        used: set[str] = set()
        for path in self._users.iterdir():
            with path.open("r+") as notes:
                try:
                    # Locked by its process while that lives. If we get the lock, it has ended.
                    lock_file(notes, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    used |= set(notes.read().splitlines())
                else:
                    path.unlink()
        return used

    @contextlib.contextmanager
    def _cache_lock(self) -> Iterator[None]:
        self._root.mkdir(parents=True, exist_ok=True)
        with self._threads, (self._root / ".lock").open("a") as lock:
            lock_file(lock, fcntl.LOCK_EX)
            yield


def _folder_size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
