"""A store on a local disk, or on a disk that machines share."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from infra.file_locks import lock_file, take_name
from infra.store.backend import ByteSource, FileStat, Receipt, StoreBackend, StoredDamageError
from infra.store.digest import file_sha256
from infra.store.manifest import File

PARTIAL = "partial"
"""Folder of records that are being written; what a killed process leaves there is garbage."""

_MAX_SYNCS = 8
"""Files synced at a time."""

_PART = 16 * 2**20
"""Size of the parts in which a large file is written [bytes]."""

_GUARD = ".guard"
"""File whose lock makes compare-and-replace atomic, and whose time is the store's clock."""


class Disk:
    """Files below one folder; `StoreBackend` documents the methods.

    Args:
      root: the folder.
      durable: whether writes survive a power cut; leases need not, and without syncs they take a
        tenth of the time.
    """

    def __init__(self, root: Path, *, durable: bool = True) -> None:
        self.uri, self.state = str(root), root
        self._root, self._durable = root, durable
        # A text, for thousands of look-ups; a `Path` takes ten times as long.
        self._root_slash = f"{root}/"

    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def read_range(self, name: str, start: int, length: int) -> bytes:
        handle = os.open(f"{self.uri}/{name}", os.O_RDONLY)  # A `Path` takes as long as the read.
        try:
            data = os.pread(handle, length, start)
        finally:
            os.close(handle)
        if len(data) != length:
            raise OSError(f"{self._root / name} ends before byte {start + length}")
        return data

    def open(self, name: str) -> BinaryIO:
        return (self._root / name).open("rb")

    @contextlib.contextmanager
    def atomic_write(self, name: str) -> Iterator[Path]:
        target = self._root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, since a rename is atomic only within one file system.
        partial = target.with_name(f"{target.name}.{uuid.uuid4().hex}.{PARTIAL}")
        try:
            yield partial
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)

    def link(self, source: str, name: str, file: File) -> Receipt:
        target = self._root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        # In a store not beside the target, where nobody would look for what a killed process left.
        swept = self._root / PARTIAL
        partial = (swept if swept.is_dir() else target.parent) / f"{uuid.uuid4().hex}.{PARTIAL}"
        try:
            try:
                os.link(self._root / source, partial)
            except OSError:  # This file system may have no links; a failed copy says why.
                shutil.copyfile(self._root / source, partial)
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
        return Receipt(file)

    def walk(self, folder: str) -> Iterator[tuple[str, FileStat]]:
        pending, visited = [("", self._root / folder)], set[str]()
        while pending:
            prefix, path = pending.pop()
            # By its real path: two links to one folder are one folder, which is listed once.
            real_path = os.path.realpath(path)
            if real_path in visited:  # Links may lead in a circle.
                continue
            visited.add(real_path)
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                os.scandir(path) as entries,
            ):
                for entry in entries:
                    name = f"{prefix}{entry.name}"
                    if entry.is_dir():
                        pending.append((f"{name}/", Path(entry.path)))
                    elif entry.is_file():
                        with contextlib.suppress(FileNotFoundError):
                            yield name, _file_stat(entry.stat())

    def stat(self, name: str) -> FileStat:
        return _file_stat(os.stat(self._root_slash + name))

    def listing(self, folder: str) -> dict[str, FileStat]:
        stats = {}
        try:
            with os.scandir(self._root / folder) as entries:
                for entry in entries:
                    # A file that is deleted during the listing counts as absent.
                    with contextlib.suppress(FileNotFoundError):
                        if entry.is_file():
                            stats[entry.name] = _file_stat(entry.stat())
                        elif entry.is_symlink() and not entry.is_dir():
                            raise OSError(f"{entry.path} is a link that leads nowhere.")
        except FileNotFoundError:
            self._check_not_dangling(folder)
            return {}
        return dict(sorted(stats.items()))

    def folders(self, folder: str) -> list[str]:
        try:
            with os.scandir(self._root / folder) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except FileNotFoundError:
            self._check_not_dangling(folder)
            return []

    def _check_not_dangling(self, folder: str) -> None:
        """Raises an error if a folder is a link to a place that is not there, such as a lost mount.

        What would be there is not absent, but unknown.
        """
        path = self._root / folder
        if path.is_symlink():
            raise OSError(f"{path} is a link that leads nowhere.")

    def create_if_absent(self, name: str, data: bytes) -> bool:
        path = self._root / name
        with self._temporary_file(path, data) as partial:
            try:
                # The bytes are on the disk already, so the name never stands for half of them:
                #
                #   partial/<random>   written, synced
                #   manifests/...      linked: there is the whole record, or none
                take_name(partial, path, self._compare_lock)
            except OSError as error:
                # The link may have been made although the call failed: a network file system that
                # lost the reply repeats the call, and reports our own file as "exists". So the
                # content of the file decides.
                try:
                    current = path.read_bytes()
                except FileNotFoundError:
                    if isinstance(error, FileExistsError):
                        return False  # Another process's file, deleted since.
                    raise error from None
                if current != data:
                    return False
        self._fsync_folder(path.parent)
        return True

    def compare_and_swap(self, name: str, old: bytes, new: bytes) -> bool:
        path = self._root / name
        with self._temporary_file(path, new) as partial:
            # A disk cannot compare and replace in one step, so all who do it on this store take
            # turns.
            with self._compare_lock():
                if not self._has_content(path, old):
                    return False
                os.replace(partial, path)
            self._fsync_folder(path.parent)
        return True

    def compare_and_delete(self, name: str, old: bytes) -> bool:
        path = self._root / name
        with self._compare_lock():
            if not self._has_content(path, old):
                return False
            path.unlink()
        self._fsync_folder(path.parent)
        return True

    def put(self, name: str, data: bytes) -> None:
        path = self._root / name
        with self._temporary_file(path, data) as partial:
            os.replace(partial, path)
        self._fsync_folder(path.parent)

    def snapshot(self) -> StoreBackend:
        return self  # Look-ups on a disk are fast.

    def now(self) -> int:
        # The time of the disk: on a shared one it is its server's, and hosts may differ by minutes.
        path = self._root / _GUARD
        # Touched, then read back: the server of the disk writes its own time into the file.
        try:
            path.touch()
        except OSError:
            if os.access(self._root, os.W_OK):
                raise
            return time.time_ns()  # Who may only read takes no lease by it, and sees ages at most.
        return path.stat().st_mtime_ns

    def total_stat(self, name: str) -> FileStat:
        size = modified = 0
        for stat_result in _tree_stats(self._root / name):
            modified = max(modified, stat_result.st_mtime_ns)
            size += 0 if stat.S_ISDIR(stat_result.st_mode) else stat_result.st_size
        return FileStat(size=size, modified=modified, version=())

    def sizes(self, folder: str, names: Iterable[str]) -> dict[str, int]:
        sizes = {}
        for name in names:
            try:
                sizes[name] = os.stat(f"{self._root_slash}{folder}/{name}").st_size
            except FileNotFoundError:
                continue
        return sizes

    def sha256(self, name: str) -> str:
        return file_sha256(self._root / name)

    def upload_file(self, path: Path, name: str) -> None:
        target = self._root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)

    def download_file(self, name: str, file: File, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self._root / name, path)
        if file_sha256(path) != file.sha256:
            raise StoredDamageError(name)

    def move(self, name: str, other: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._root / name).rename(self._root / other)

    def make_workspace(self, folder: str) -> Path:
        path = self._root / folder
        path.mkdir(parents=True)
        return path

    def upload_bytes(self, name: str, data: ByteSource) -> Receipt:
        target = self._root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with target.open("xb") as file:
            for start in range(0, data.size, _PART):
                part = data.read(start, _PART)
                digest.update(part)
                file.write(part)
        return Receipt(File(sha256=digest.hexdigest(), size=data.size))

    def publish_folder(
        self, folder: str, files: Mapping[str, File], sent: Mapping[str, Receipt]
    ) -> None:
        # The last look before a manifest states these sizes, and it is cheap.
        expected = {**files, **{name: receipt.file for name, receipt in sent.items()}}
        if self.sizes(folder, expected) != {name: file.size for name, file in expected.items()}:
            raise OSError(f"{self._root / folder} does not hold what was written; try again.")
        # The workspace is the stored folder already, so it is only synced: bytes first, then names.
        # The other way round, a power cut could leave a name whose file is empty.
        path = self._root / folder
        tree = list(os.walk(path, onerror=_raise_walk_error))
        paths = [Path(below) / name for below, _, names in tree for name in names]
        # In parallel, so that the disk's journal takes several at once, which takes 0.4 of the time
        # (150 artifacts).
        with ThreadPoolExecutor(_MAX_SYNCS) as pool:
            list(pool.map(_fsync_store_path, paths))
            above = [upper for upper in path.parents if upper.is_relative_to(self._root)]
            list(pool.map(_fsync_store_path, [*(Path(below) for below, *_ in tree), *above]))

    def local_folder(self, folder: str, files: Mapping[str, File]) -> Path:
        return self._root / folder

    def folder_uri(self, folder: str, files: Mapping[str, File]) -> str:
        return str(self._root / folder)

    def remove(self, folder: str) -> None:
        path = self._root / folder
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _temporary_file(self, path: Path, data: bytes) -> Iterator[Path]:
        """Yields a temporary file of these bytes, on the disk of `path`, whose folder it makes."""
        _make_folder(path.parent)
        partial = self._root / PARTIAL / uuid.uuid4().hex
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
    def _compare_lock(self) -> Iterator[None]:
        """Holds the lock of compare-and-replace, which the kernel frees if the process dies."""
        # `flock` and not a lock file: nothing is left behind by a process that was killed.
        with (self._root / _GUARD).open("a") as file:
            lock_file(file, fcntl.LOCK_EX)
            yield

    def _fsync_folder(self, path: Path) -> None:
        if self._durable:
            _fsync_store_path(path)

    @staticmethod
    def _has_content(path: Path, data: bytes) -> bool:
        try:
            return path.read_bytes() == data
        except FileNotFoundError:
            return False


def _file_stat(status: os.stat_result) -> FileStat:
    version = (status.st_ino, status.st_mtime_ns, status.st_size)
    return FileStat(
        size=status.st_size,
        modified=status.st_mtime_ns,
        version=version,
        changed=status.st_ctime_ns,
    )


def _tree_stats(path: Path) -> Iterator[os.stat_result]:
    """Yields the state of a file, or of a folder and all below it; deleted ones are left out."""
    with contextlib.suppress(FileNotFoundError):
        yield os.stat(path)
    for folder, folders, names in os.walk(path):
        for name in (*folders, *names):
            with contextlib.suppress(FileNotFoundError):
                yield os.lstat(os.path.join(folder, name))


def _raise_walk_error(error: OSError) -> None:
    raise error


def _make_folder(path: Path) -> None:
    """Makes a folder and those above it, and syncs the name of each."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    path.mkdir(exist_ok=True)
    _fsync_store_path(path.parent)


def _fsync_store_path(path: Path) -> None:
    """Forces a file, or the names in a folder, onto the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
