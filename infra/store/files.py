"""The verbs the store's records are kept with; a second back end has to offer these and no more.

Records (manifests, leases, pins, blobs of source) are small and whole: whoever reads one finds all
of it or nothing. On a disk that is a link or a rename of a file written and synced beforehand; on
a bucket it would be a precondition on the object's generation.

One rule holds for every error: only "not found" means that something is not there. A stale handle,
an I/O error, a loop of links say nothing about the file, and are raised.
"""

import contextlib
import dataclasses
import fcntl
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PARTIAL = "partial"
"""Folder of records being written; what a killed process leaves there is garbage."""

_SYNCS = 8
"""Files synced at a time."""

_GUARD = ".guard"
"""File whose lock makes compare-and-replace one act, and whose time is the store's clock."""


@dataclasses.dataclass(frozen=True)
class Stat:
    """A file as a listing shows it.

    Attributes:
      size: [bytes].
      modified: when it was last written, on the clock of the file system [ns].
      version: differs whenever the file was replaced.
    """

    size: int
    modified: int
    version: tuple[int, ...]


class Files:
    """Records below one local folder, by names such as "leases/x.json".

    Args:
      root: the folder.
      durable: whether what is written outlives a power cut; leases need not, and without syncs
        they cost a tenth.
    """

    def __init__(self, root: Path, *, durable: bool = True) -> None:
        self.root = root
        self._durable = durable

    def read(self, name: str) -> bytes:
        """Returns a file's bytes.

        Raises:
          FileNotFoundError: if it is not there.
        """
        return (self.root / name).read_bytes()

    def stat(self, name: str) -> Stat:
        """Returns a file's size and version.

        Raises:
          FileNotFoundError: if it is not there.
        """
        return _stat(os.stat(self.root / name))

    def listing(self, folder: str) -> dict[str, Stat]:
        """Returns the files right in a folder by name, sorted; none where it does not exist."""
        found = {}
        try:
            with os.scandir(self.root / folder) as entries:
                for entry in entries:
                    # One that goes while it is looked at was not there.
                    with contextlib.suppress(FileNotFoundError):
                        if entry.is_file():
                            found[entry.name] = _stat(entry.stat())
        except FileNotFoundError:
            return {}
        return dict(sorted(found.items()))

    def folders(self, folder: str) -> list[str]:
        """Returns the names of the folders right in a folder; none where it does not exist."""
        try:
            with os.scandir(self.root / folder) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except FileNotFoundError:
            return []

    def create(self, name: str, data: bytes) -> bool:
        """Writes a file that is whole or absent; returns whether these bytes are the ones there.

        False means that another writer was first. A call that raises may have written the file
        all the same: nothing the file speaks of may be deleted then.
        """
        path = self.root / name
        with self._written(path, data) as partial:
            try:
                os.link(partial, path)
            except OSError as error:
                # The reply may be lost and the link made: a network file system repeats the call
                # and reports its own file as "exists". What lies there decides.
                try:
                    there = path.read_bytes()
                except FileNotFoundError:
                    if isinstance(error, FileExistsError):
                        return False  # Another's, and deleted since.
                    raise error from None
                if there != data:
                    return False
        self._sync_folder(path.parent)
        return True

    def swap(self, name: str, old: bytes, new: bytes) -> bool:
        """Replaces a file if it holds `old`; returns whether it was so."""
        path = self.root / name
        with self._written(path, new) as partial:
            with self._guarded():
                if not self._holds(path, old):
                    return False
                os.replace(partial, path)
            self._sync_folder(path.parent)
        return True

    def drop(self, name: str, old: bytes) -> bool:
        """Deletes a file if it holds `old`; returns whether it was so."""
        path = self.root / name
        with self._guarded():
            if not self._holds(path, old):
                return False
            path.unlink()
        self._sync_folder(path.parent)
        return True

    def now(self) -> int:
        """Returns the time by the clock that dates the files [ns since 1970].

        On a shared disk that clock is the server's; hosts' own clocks may differ by minutes.
        """
        path = self.root / _GUARD
        path.touch()
        return path.stat().st_mtime_ns

    def sync(self, folder: str) -> None:
        """Forces a folder's files, and its name in the folders above, onto the disk."""
        path = self.root / folder
        found = list(os.walk(path, onerror=_raise))
        files = [Path(below) / name for below, _, names in found for name in names]
        # Together, so that the journal takes several at once: 0.4 of the time (150 artifacts).
        with ThreadPoolExecutor(_SYNCS) as pool:
            list(pool.map(_sync, files))
            above = [upper for upper in path.parents if upper.is_relative_to(self.root)]
            list(pool.map(_sync, [*(Path(below) for below, *_ in found), *above]))

    @contextlib.contextmanager
    def _written(self, path: Path, data: bytes) -> Iterator[Path]:
        """Yields a synced file of these bytes, on the same disk as `path`, whose folder exists."""
        _make_folder(path.parent)
        partial = self.root / PARTIAL / uuid.uuid4().hex
        partial.parent.mkdir(exist_ok=True)
        try:
            with partial.open("xb") as file:
                file.write(data)
                file.flush()
                if self._durable:
                    os.fsync(file.fileno())
            yield partial
        finally:
            partial.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Excludes other comparisons for the microseconds that one takes; ends with the process."""
        with (self.root / _GUARD).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _sync_folder(self, path: Path) -> None:
        if self._durable:
            _sync(path)

    @staticmethod
    def _holds(path: Path, data: bytes) -> bool:
        try:
            return path.read_bytes() == data
        except FileNotFoundError:
            return False


def _stat(found: os.stat_result) -> Stat:
    version = (found.st_ino, found.st_mtime_ns, found.st_size)
    return Stat(size=found.st_size, modified=found.st_mtime_ns, version=version)


def _raise(error: OSError) -> None:
    raise error


def _make_folder(path: Path) -> None:
    """Makes a folder and those above it, each one's name synced."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    path.mkdir(exist_ok=True)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Forces a file, or the names in a folder, onto the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
