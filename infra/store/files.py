"""The verbs a store is kept with, and what each back end makes of them.

Records (manifests, leases, pins, blobs of source) are small and whole: whoever reads one finds all
of it or nothing. On a disk that is a link or a rename of a file written and synced beforehand; in
a bucket, a precondition on the object's generation. Data are folders of files, written once by
whoever holds an attempt and read by everybody afterwards.

One rule holds for every error: only "not found" means that something is not there. A stale handle,
an I/O error, a server that is busy say nothing about the file, and are raised.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol

from infra.store.manifest import File

MANIFESTS = "manifests"
"""Folder of the manifests, one more below it for each kind."""


@dataclasses.dataclass(frozen=True)
class Stat:
    """A file as a listing shows it.

    Attributes:
      size: [bytes].
      modified: when it was last written, on the clock of the store [ns].
      version: differs whenever the file was replaced.
      crc32c: of the bytes, as a bucket tells it; "" on a disk.
    """

    size: int
    modified: int
    version: tuple[int, ...]
    crc32c: str = ""


class Content(Protocol):
    """Bytes that can be had again and again, wherever they are.

    Attributes:
      size: [bytes].
    """

    size: int

    def read(self, start: int, length: int) -> bytes:
        """Returns a range; less of it at the end."""
        ...


@dataclasses.dataclass(frozen=True)
class Receipt:
    """What a writer of an attempt says it stored; whoever commits compares it with what is there.

    Attributes:
      file: digest and size.
      crc32c: of the bytes, as a bucket tells it; "" on a disk.
      generation: of the object; "" on a disk.
    """

    file: File
    crc32c: str = ""
    generation: str = ""


class Files(Protocol):
    """Files below one place, by names such as "leases/x.json".

    Attributes:
      uri: the place, for people and for other processes.
      state: local folder for what is this machine's alone: progress, caches, Prefect's database.
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
        """Returns bytes start..start+length-1 of a file, which has as many.

        Nothing compares them with what was written: who reads ranges has checksums of them.

        Raises:
          FileNotFoundError: if it is not there.
          OSError: if it ends before.
        """
        ...

    def open(self, name: str) -> BinaryIO:
        """Opens a file for reading; of a bucket it is fetched block by block, one ahead.

        Raises:
          FileNotFoundError: if it is not there.
        """
        ...

    def writing(self, name: str) -> AbstractContextManager[Path]:
        """Yields a local path to write to; the file has its name once all of it is stored.

        Two may write the same bytes under one name; nothing is stored if the body raises.
        """
        ...

    def link(self, source: str, name: str, file: File) -> Receipt:
        """Gives a stored file another name, without moving its bytes through this machine.

        Args:
          source: its name so far, which it keeps.
          name: a name that nobody else writes to.
          file: digest and size, for the receipt.
        """
        ...

    def walk(self, folder: str) -> Iterator[tuple[str, Stat]]:
        """Yields every file below a folder, by its path in it; none where it does not exist."""
        ...

    def stat(self, name: str) -> Stat:
        """Returns a file's size and version.

        Raises:
          FileNotFoundError: if it is not there.
        """
        ...

    def listing(self, folder: str) -> dict[str, Stat]:
        """Returns the files right in a folder by name, sorted; none where it does not exist."""
        ...

    def folders(self, folder: str) -> list[str]:
        """Returns the names of the folders right in a folder; none where it does not exist."""
        ...

    def measure(self, name: str) -> Stat:
        """Returns the size of a file, or of all below a folder, and the time of its last change.

        Where there is none: nothing, in 1970.
        """
        ...

    def sizes(self, folder: str, names: Iterable[str]) -> dict[str, int]:
        """Returns those of some files below a folder that are there: path in it -> size [bytes]."""
        ...

    def sha256(self, name: str) -> str:
        """Returns the digest of a file's bytes as they are stored [hex].

        Raises:
          FileNotFoundError: if it is not there.
        """
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Writes a file that is whole or absent; returns whether these bytes are the ones there.

        False means that another writer was first. A call that raises may have written the file
        all the same: nothing the file speaks of may be deleted then.
        """
        ...

    def swap(self, name: str, old: bytes, new: bytes) -> bool:
        """Replaces a file if it holds `old`; returns whether it was so."""
        ...

    def drop(self, name: str, old: bytes) -> bool:
        """Deletes a file if it holds `old`; returns whether it was so."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Writes a file, in the place of whatever is there."""
        ...

    def at_once(self) -> "Files":
        """Returns these files as they are at this moment, for many questions; see `glance`."""
        ...

    def now(self) -> int:
        """Returns the time by the clock that dates the files [ns since 1970]."""
        ...

    def upload(self, path: Path, name: str) -> None:
        """Stores a local file of any size under a name that nobody else writes to."""
        ...

    def send(self, name: str, data: Content) -> Receipt:
        """Stores bytes of any size under a name that nobody else writes to; digests them, too."""
        ...

    def download(self, name: str, file: File, path: Path) -> None:
        """Copies a stored file to a local path, whose folder is made.

        Raises:
          FileNotFoundError: if it is not stored.
          OSError: if it is not what `file` says.
        """
        ...

    def workplace(self, folder: str) -> Path:
        """Makes an empty local folder, to be filled by one process and then stored as `folder`."""
        ...

    def settle(self, folder: str, files: Mapping[str, File], sent: Mapping[str, Receipt]) -> None:
        """Stores what was written in a workplace; afterwards everybody can read it, for ever.

        Args:
          folder: as `workplace` was asked for.
          files: path in it -> digest and size.
          sent: path -> receipt of what is stored already.

        Raises:
          OSError: if what is stored then is not all of these, and nothing else.
        """
        ...

    def local(self, folder: str, files: Mapping[str, File]) -> Path:
        """Returns a local folder that holds these files of a stored folder.

        Raises:
          FileNotFoundError: if one of them is not stored.
          OSError: if what is stored is not what `files` says.
        """
        ...

    def place(self, folder: str, files: Mapping[str, File]) -> str:
        """Returns where a stored folder is read in ranges: a local one, or one in a bucket.

        Args:
          folder: which.
          files: path in it -> digest and size.
        """
        ...

    def remove(self, folder: str) -> None:
        """Deletes a folder, or a file, if it is there."""
        ...
