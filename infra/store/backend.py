"""The operations on a store's files, which each back end implements.

Records (manifests, leases, pins, blobs of source) are small and atomic: a reader finds all of one
or nothing. A disk links or renames a file that was written and synced beforehand; a bucket checks a
precondition on the object's generation or ETag. Data are folders of files, written once by the
process that holds an attempt, and read by everybody afterwards.

One rule holds for every error: only "not found" means that a file is absent. A stale handle, an I/O
error or a busy server says nothing about the file, and is raised.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from infra.store.manifest import File

BUCKET_SCHEME = ("gs://", "s3://", "az://")
"""Prefixes of places that are not on this machine, for `str.startswith`."""

MANIFESTS = "manifests"
"""Folder of the manifests, with a folder below it for each kind."""

_MAX_READS = 96
"""Small files read at a time: each takes milliseconds, nearly all of them waiting."""

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclasses.dataclass(frozen=True)
class FileStat:
    """A file as a listing shows it.

    Attributes:
      size: size of the file [bytes].
      modified: time of the last write, by the clock of the store [ns].
      version: numbers that change whenever the file is replaced.
      crc32c: checksum of the bytes, as gs:// states it; "" elsewhere.
      changed: time of the last change of any kind, which nobody can set back [ns]; 0 in a bucket,
        whose objects are replaced and never changed.
    """

    size: int
    modified: int
    version: tuple[int, ...]
    crc32c: str = ""
    changed: int = 0


class ByteSource(Protocol):
    """Bytes that can be read repeatedly, wherever they are.

    Attributes:
      size: number of bytes.
    """

    size: int

    def read(self, start: int, length: int) -> bytes:
        """Returns a range of bytes, shorter at the end."""
        ...


@dataclasses.dataclass(frozen=True)
class Receipt:
    """A writer's note on a file that it stored; the commit compares it with the stored file.

    Attributes:
      file: digest and size.
      crc32c: checksum of the bytes, as gs:// states it; "" elsewhere.
      generation: generation of the object, or its ETag; "" on a disk.
    """

    file: File
    crc32c: str = ""
    generation: str = ""


class StoredDamageError(OSError):
    """A stored file has other bytes than were stored.

    Attributes:
      name: its name in the store.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} holds other bytes than its digest")
        self.name = name


class StoreBackend(Protocol):
    """Files below one place, with names such as "leases/x.json".

    Attributes:
      uri: the place, for people and for other processes.
      state: local folder for files of this machine only: progress, caches, Prefect's database.
    """

    uri: str
    state: Path

    def read(self, name: str) -> bytes:
        """Returns a file's bytes.

        Raises:
          FileNotFoundError: if it is not there.
        """
        ...

    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Returns bytes start..start+length-1 of a file, which must have them.

        They are not compared with what was written; the caller needs checksums of its ranges.

        Raises:
          FileNotFoundError: if it is not there.
          OSError: if the file ends before.
        """
        ...

    def open(self, name: str) -> BinaryIO:
        """Opens a file for reading; from a bucket it is fetched block by block, with one ahead.

        Raises:
          FileNotFoundError: if it is not there.
        """
        ...

    def atomic_write(self, name: str) -> AbstractContextManager[Path]:
        """Yields a local path to write to; the file appears only once all of it is stored.

        Two processes may write the same bytes under one name. Nothing is stored if the body raises.
        """
        ...

    def link(self, source: str, name: str, file: File) -> Receipt:
        """Gives a stored file another name, without moving its bytes through this machine.

        Args:
          source: its present name, which it keeps.
          name: the new name, which nobody else writes to.
          file: digest and size, for the receipt.
        """
        ...

    def walk(self, folder: str) -> Iterator[tuple[str, FileStat]]:
        """Yields every file below a folder, by its path in it; none if it does not exist."""
        ...

    def stat(self, name: str) -> FileStat:
        """Returns a file's size and version.

        Raises:
          FileNotFoundError: if it is not there.
        """
        ...

    def listing(self, folder: str) -> dict[str, FileStat]:
        """Returns the files directly in a folder by name, sorted; none if it does not exist."""
        ...

    def folders(self, folder: str) -> list[str]:
        """Returns the names of the folders directly in a folder; none if it does not exist."""
        ...

    def total_stat(self, name: str) -> FileStat:
        """Returns the size of a file, or of all below a folder, and the time of its last change.

        Both are 0 if there is no such file.
        """
        ...

    def sizes(self, folder: str, names: Iterable[str]) -> dict[str, int]:
        """Returns path in a folder -> size [bytes], of those of some files that are there."""
        ...

    def sha256(self, name: str) -> str:
        """Returns the digest of a file's bytes as they are stored [hex].

        Raises:
          FileNotFoundError: if it is not there.
        """
        ...

    def create_if_absent(self, name: str, data: bytes) -> bool:
        """Creates a file atomically; returns whether it holds these bytes now.

        False means that another writer was first. A call that raises may have written the file
        all the same, so nothing that the file names may be deleted then.
        """
        ...

    def compare_and_swap(self, name: str, old: bytes, new: bytes) -> bool:
        """Replaces a file if it holds `old`; returns whether it did."""
        ...

    def compare_and_delete(self, name: str, old: bytes) -> bool:
        """Deletes a file if it holds `old`; returns whether it did."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Writes a file, and replaces one that is there."""
        ...

    def snapshot(self) -> "StoreBackend":
        """Returns a snapshot of these files, for many look-ups; see `snapshot`."""
        ...

    def now(self) -> int:
        """Returns the present time by the clock that dates the files [ns since 1970]."""
        ...

    def upload_file(self, path: Path, name: str) -> None:
        """Stores a local file of any size under a name that nobody else writes to."""
        ...

    def upload_bytes(self, name: str, data: ByteSource) -> Receipt:
        """Stores bytes of any size under a name that nobody else writes to, and digests them."""
        ...

    def download_file(self, name: str, file: File, path: Path) -> None:
        """Copies a stored file to a local path, whose folder is made.

        Raises:
          FileNotFoundError: if it is not stored.
          StoredDamageError: if its bytes do not match `file`.
          OSError: if it could not be read.
        """
        ...

    def move(self, name: str, other: str) -> None:
        """Gives a file that nobody writes to another name; it may be gone already."""
        ...

    def make_workspace(self, folder: str) -> Path:
        """Makes an empty local folder, to be filled by one process and then stored as `folder`."""
        ...

    def publish_folder(
        self, folder: str, files: Mapping[str, File], sent: Mapping[str, Receipt]
    ) -> None:
        """Stores the files of a workspace durably; afterwards everybody can read them.

        Args:
          folder: name of the folder, as given to `make_workspace`.
          files: path in it -> digest and size.
          sent: path in it -> receipt of a file that is stored already.

        Raises:
          OSError: if the stored folder does not hold these files.
        """
        ...

    def local_folder(self, folder: str, files: Mapping[str, File]) -> Path:
        """Returns a local folder that holds these files of a stored folder.

        Raises:
          FileNotFoundError: if one of them is not stored.
          StoredDamageError: if the stored bytes do not match `files`.
          OSError: if they could not be read.
        """
        ...

    def folder_uri(self, folder: str, files: Mapping[str, File]) -> str:
        """Returns the address for reading a stored folder in ranges: a local path, or in a bucket.

        Args:
          folder: name of the folder.
          files: path in it -> digest and size.
        """
        ...

    def remove(self, folder: str) -> None:
        """Deletes a folder, or a file, if it is there."""
        ...


def map_reads(read: Callable[[_T], _R], names: Iterable[_T]) -> list[_R]:
    """Returns the results of a function that reads from a store, in the order of its arguments."""
    with ThreadPoolExecutor(_MAX_READS, thread_name_prefix="read") as pool:
        return list(pool.map(read, names))
