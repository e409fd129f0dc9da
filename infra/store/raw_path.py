"""Raw data outside of a store, on a disk or in a bucket, which readers use as a `pathlib.Path`."""

import contextlib
import fnmatch
import functools
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, ClassVar, cast

from infra.store.backend import FileStat
from infra.store.block_reader import BlockReader, RangedFile
from infra.store.stored_folder import BUCKET_SCHEME

if TYPE_CHECKING:
    from infra.store.objects.bucket import Bucket

_PIECE = 1 << 20
"""Size of the pieces in which a file is copied [bytes]."""

_FOLDERS = 64
"""Number of a bucket's folders whose listings are remembered."""


def raw_path(place: str | os.PathLike[str]) -> Path:
    """Returns a folder of raw data as a path: on this machine, or in a bucket (gs://bucket/prefix).

    A path in a bucket supports what readers need: join, name, open for reading, list, and check for
    existence. Listings of its folders are remembered.

    Raises:
      ValueError: if the bucket's name is malformed.
      OSError: if the bucket cannot be read.
    """
    text = os.fspath(place)
    if not text.startswith(BUCKET_SCHEME):
        return Path(text)
    from infra.store.objects.bucket import Bucket

    scheme, _, place = text.partition("://")
    bucket, _, prefix = place.partition("/")
    folders = _BucketFolders(Bucket(f"{scheme}://{bucket}"))
    # The connection is an attribute of a new class, since paths derived from a path get its class.
    kind = type("BucketPath", (_BucketPath,), {"_folders": folders, "_scheme": scheme})
    return cast(Path, kind("/", bucket, prefix))


@contextlib.contextmanager
def local_copy(path: Path) -> Iterator[Path]:
    """Yields a raw file as a local one: itself, or a temporary copy with a verified checksum.

    Raises:
      RangeError: if a bucket sent other bytes than are there.
    """
    if isinstance(path, Path):
        yield path
        return
    with tempfile.NamedTemporaryFile(prefix="parcel-") as copy:
        with path.open("rb") as file:  # Read from end to end, which verifies its checksum.
            shutil.copyfileobj(file, copy, _PIECE)
        copy.flush()
        yield Path(copy.name)


class _BucketFolders:
    """A bucket, and the names in its folders as they were when first asked for."""

    def __init__(self, bucket: "Bucket") -> None:
        self.bucket = bucket
        self.list_folder = functools.lru_cache(maxsize=_FOLDERS)(bucket.entries)
        self._last: tuple[str, BlockReader] | None = None

    def blocks(self, name: str) -> BlockReader:
        """Returns the blocks of an object, with those in memory if it was the last one opened."""
        if self._last is None or self._last[0] != name:
            self._last = name, self.bucket.blocks(name)
        return self._last[1]

    def range_in_memory(self, name: str, start: int, length: int) -> bytes | None:
        """Returns a range of the object opened last if it is in memory, else None."""
        if self._last is None or self._last[0] != name:
            return None
        return self._last[1].range_in_memory(start, length)


class _BucketPath(PurePosixPath):
    """/bucket/name: an object, or a folder of objects."""

    _folders: ClassVar[_BucketFolders]
    _scheme: ClassVar[str]

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self._scheme}:/{text}" if text.startswith("/") else text

    def __fspath__(self) -> str:
        return str(self)

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Opens it for reading, as `pathlib.Path.open` does."""
        del buffering
        file = io.BufferedReader(RangedFile(self._folders.blocks(self._object_name)))
        return file if "b" in mode else io.TextIOWrapper(file, encoding, errors, newline)

    def read_bytes(self) -> bytes:
        """Returns its bytes, compared with the object's checksum."""
        return self._folders.bucket.read(self._object_name)

    def read_range(self, start: int, length: int) -> bytes:
        """Returns a range inside the object, from memory or by one request."""
        cached = self._folders.range_in_memory(self._object_name, start, length)
        if cached is not None:
            return cached
        return self._folders.bucket.read_range(self._object_name, start, length)

    def read_text(self, encoding: str | None = None) -> str:
        """Returns its text."""
        return io.TextIOWrapper(io.BytesIO(self.read_bytes()), encoding).read()

    def state(self) -> FileStat:
        """Returns size, generation and checksum.

        Raises:
          FileNotFoundError: if it is not an object.
        """
        stat = self._raw_files_beside().get(self.name)
        if stat is None:
            raise FileNotFoundError(f"{self} is missing.")
        return stat

    def is_file(self) -> bool:
        """Whether it is an object."""
        return self.name in self._raw_files_beside()

    def is_dir(self) -> bool:
        """Whether there is an object below it."""
        return any(map(bool, self._list_folder()))

    def is_symlink(self) -> bool:
        """Whether it is a link; a bucket has none."""
        return False

    def exists(self) -> bool:
        """Whether it is an object or a folder of objects."""
        return self.is_file() or self.is_dir()

    def iterdir(self) -> Iterator["_BucketPath"]:
        """Yields its direct children, by name."""
        files, folders = self._list_folder()
        for name in sorted({*files, *folders}):
            if name:  # Skips an object named like its folder, which web consoles create.
                yield self / name

    def glob(self, pattern: str) -> Iterator["_BucketPath"]:
        """Yields the paths below it that match, part by part."""
        # One listing for each folder on the way: "*/images/*.jpg" lists the root, then `images` of
        # each folder, and never the whole bucket.
        part, *parts = PurePosixPath(pattern).parts
        for path in self.iterdir():
            if fnmatch.fnmatchcase(path.name, part):
                if parts:
                    yield from path.glob("/".join(parts))
                else:
                    yield path

    def rglob(self, pattern: str) -> Iterator["_BucketPath"]:
        """Yields the paths anywhere below it whose name matches."""
        prefix = self._object_name
        for name, _ in self._folders.bucket.walk(prefix):
            path = self / name
            if fnmatch.fnmatchcase(path.name, pattern):
                yield path

    @property
    def _object_name(self) -> str:
        return "/".join(self.parts[2:])

    def _list_folder(self) -> tuple[dict[str, FileStat], list[str]]:
        return self._folders.list_folder(self._object_name)

    def _raw_files_beside(self) -> dict[str, FileStat]:
        if len(self.parts) < 3:
            return {}
        return self._folders.list_folder("/".join(self.parts[2:-1]))[0]
