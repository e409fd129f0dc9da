"""What a bucket's client offers: objects that are read, written on a condition, listed and deleted.

`Bucket` makes the operations of a store of it; here are no folders, only keys. Each kind of bucket
has its client: `google_client` for gs://, `obstore_client` for s3:// and az://.
"""

import abc
import dataclasses
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from infra.store.backend import ByteSource, FileStat
from infra.store.block_reader import WholeSum

ABSENT = ""
"""Generation of an object that is not there."""

_MAX_TRIES = 4
"""Tries of a request that the client's library, after its own retries, could not finish."""

_T = TypeVar("_T")


class BucketError(OSError):
    """The bucket did not answer, or answered with an error; that says nothing about the file."""


@dataclasses.dataclass(frozen=True)
class StoredObject:
    """An object as its bucket describes it.

    Attributes:
      key: its name in the bucket.
      stat: size, time and version.
      generation: changes whenever the object is replaced by other bytes: a number in gs://, the
        ETag elsewhere.
    """

    key: str
    stat: FileStat
    generation: str


class ObjectClient(abc.ABC):
    """Requests for the objects of one bucket; threads may share it.

    A method makes one try, for `with_retries` to repeat, unless it says that it retries. It raises
    FileNotFoundError if there is no such object, FileExistsError if a precondition failed, and the
    exceptions of its library.

    Attributes:
      uri: the bucket, such as gs://bucket.
      address: where it is asked for, if that is not the usual place of its provider, else "".
      server: its server [URL]; "" if unknown.
      server_variable: variable of the environment that names another server.
    """

    uri: str
    address: str = ""
    server: str = ""
    server_variable: str = ""

    @abc.abstractmethod
    def probe(self) -> None:
        """Makes a minimal request, which needs only the right to list."""

    def check_region(self, uri: str) -> None:
        """Refuses a bucket that is certainly in another region than this machine.

        Args:
          uri: URI of the store, for people.

        Raises:
          ValueError: if it is.
        """
        del uri

    @abc.abstractmethod
    def now(self, folder: str) -> int:
        """Returns the time by the clock that dates the objects [ns since 1970].

        Args:
          folder: beginning of keys that may be written to for this.
        """

    @abc.abstractmethod
    def get(self, key: str) -> tuple[bytes, str]:
        """Returns an object's bytes, compared with its checksum if it has one, and generation."""

    @abc.abstractmethod
    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Returns a range of an object's bytes."""

    @abc.abstractmethod
    def download(self, key: str, path: Path) -> None:
        """Writes an object's bytes to a local file."""

    @abc.abstractmethod
    def stat(self, key: str) -> StoredObject:
        """Returns an object's description."""

    @abc.abstractmethod
    def walk(self, prefix: str) -> Iterator[StoredObject]:
        """Yields all objects whose key begins with a prefix, "" or ending in "/"; retries."""

    def keys(self, prefix: str) -> Iterator[str]:
        """Yields the keys of all that is stored below such a prefix; retries."""
        return (stored.key for stored in self.walk(prefix))

    @abc.abstractmethod
    def entries(self, prefix: str) -> tuple[list[StoredObject], list[str]]:
        """Returns the objects directly below such a prefix, and the prefixes below it; retries."""

    @abc.abstractmethod
    def put(self, key: str, data: bytes, replaced: str | None) -> str:
        """Writes an object in one request; returns its generation.

        Args:
          key: its name.
          data: its bytes.
          replaced: generation that must be there; `ABSENT` for no object, None for any.
        """

    @abc.abstractmethod
    def upload(self, key: str, data: ByteSource) -> str:
        """Writes a large object, in parts, under a key that nobody else writes to.

        Returns:
          Its generation.
        """

    @abc.abstractmethod
    def copy(self, source: str, key: str) -> None:
        """Copies an object inside the bucket, to a key that nobody else writes to; retries.

        Raises:
          FileExistsError: if there is an object of that key.
        """

    @abc.abstractmethod
    def delete(self, key: str, generation: str | None = None) -> None:
        """Deletes an object; if a generation is named, only that one."""

    @abc.abstractmethod
    def checksum(self, data: Iterator[bytes]) -> str:
        """Returns the checksum of bytes as `FileStat.crc32c` has it; "" if the bucket has none."""

    @abc.abstractmethod
    def whole_sum(self, stored: StoredObject) -> WholeSum | None:
        """Returns a check of an object's bytes for readers of ranges; None if there is none."""

    @abc.abstractmethod
    def is_transient(self, error: Exception) -> bool:
        """Whether another try may succeed."""

    @abc.abstractmethod
    def reason(self, error: Exception) -> str:
        """Returns the cause of an error, in one line, without credentials."""

    def with_retries(self, request: Callable[[], _T]) -> _T:
        """Makes a request, and retries it after a pause if that may help.

        Raises:
          FileNotFoundError, FileExistsError: if the bucket said so; the latter means that a
            precondition failed.
          BucketError: after any other error.
        """
        tries = 0
        while True:
            try:
                return request()
            except (FileNotFoundError, FileExistsError, BucketError):
                raise
            except Exception as error:  # Of the client's library, or what that is built on.
                # Pauses of up to 2, 4, 8 s, drawn at random: many workers that were refused at the
                # same moment do not come back at the same moment.
                tries += 1
                if tries == _MAX_TRIES or not self.is_transient(error):
                    raise BucketError(f"{self.uri}: {self.reason(error)}") from error
                time.sleep(random.uniform(0, 2.0**tries))
