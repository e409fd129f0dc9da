"""The encoded bytes of media, wherever they lie."""

import collections
import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google_crc32c

from infra.store.files import Files
from pipelines.records.schema import BadInput
from pipelines.sources.item import Item, Media

MAX_ENCODED = 512 << 20
"""Largest encoded image read into memory [bytes]; the largest photographs have some 100 MB."""

_TRIES = 4
"""Of a range that came with another checksum."""

_AHEAD = 16
"""Images of a bucket on their way while one is decoded: a request takes longer than that."""


class MediaReader:
    """Reads media of one data root. Not thread-safe.

    Args:
      data_root: as `raw_path` opens it.
      unpacked: the folder that `Media.store` is in; None where nothing was unpacked.
    """

    def __init__(self, data_root: Path, unpacked: Files | None = None) -> None:
        self._root, self._unpacked = data_root, unpacked
        self._is_local = isinstance(data_root, Path)
        self._pool = ThreadPoolExecutor(_AHEAD, thread_name_prefix="media")
        self._coming: dict[Media, Future[bytes]] = {}

    def expected(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items; of a bucket, what the next ones show is fetched meanwhile."""
        if self._is_local:
            yield from items
            return
        waiting: collections.deque[Item] = collections.deque()
        for item in items:
            waiting.append(item)
            for media in item.media:
                if not media.video and media not in self._coming:
                    self._coming[media] = self._pool.submit(self._read, media)
            if len(waiting) > _AHEAD:
                yield waiting.popleft()
                self._forget(waiting)
        while waiting:
            yield waiting.popleft()
            self._forget(waiting)

    def read(self, media: Media) -> bytes:
        """Returns the encoded bytes of an image.

        Raises:
          BadInput: if the file is missing, unreadable or shorter than listed.
        """
        coming = self._coming.get(media)
        return self._read(media) if coming is None else coming.result()

    @contextlib.contextmanager
    def local(self, media: Media) -> Iterator[tuple[str, str]]:
        """Yields a path of this machine with the bytes of a video, and their sha256 [hex].

        Raises:
          BadInput: if it cannot be read.
        """
        with contextlib.ExitStack() as stack:
            with self._told(media):
                path = self._root / media.path
                if not self._is_local:
                    copy = stack.enter_context(tempfile.NamedTemporaryFile(prefix="parcel-"))
                    with path.open("rb") as file:
                        shutil.copyfileobj(file, copy, 1 << 20)
                    copy.flush()
                    path = Path(copy.name)
                with path.open("rb") as file:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            yield str(path), sha256

    def sha256(self, media: Media) -> str:
        """Returns the digest of the encoded bytes; of a video, of its whole file [hex].

        Raises:
          BadInput: if they cannot be read.
        """
        if not media.video:
            return hashlib.sha256(self.read(media)).hexdigest()
        with self.local(media) as (_, sha256):
            return sha256

    def has(self, media: Media) -> bool:
        """Whether the file of a media is there."""
        path = self._root / media.path
        return os.path.isfile(path) if self._is_local else path.is_file()

    def _forget(self, waiting: Iterable[Item]) -> None:
        wanted = {media for item in waiting for media in item.media}
        for media in self._coming.keys() - wanted:
            del self._coming[media]

    def _read(self, media: Media) -> bytes:
        with self._told(media):
            if media.store:
                return self._from_unpacked(media)
            if not self._is_local:
                return self._from_bucket(media)
            with (self._root / media.path).open("rb") as file:
                size = media.size if media.size >= 0 else os.fstat(file.fileno()).st_size
                _check_size(size)
                file.seek(media.offset)
                data = file.read(media.size)
        if media.size >= 0 and len(data) != media.size:
            raise BadInput(f"truncated: {len(data)} of {media.size} bytes")
        return data

    def _from_unpacked(self, media: Media) -> bytes:
        unpacked = self._unpacked
        assert unpacked is not None
        return _compared(media, lambda: unpacked.read_range(media.store, media.offset, media.size))

    def _from_bucket(self, media: Media) -> bytes:
        path: Any = self._root / media.path
        if media.size < 0:
            data = path.read_bytes()
            _check_size(len(data))
            return data
        _check_size(media.size)
        there = path.state().size - media.offset
        if there < media.size:
            raise BadInput(f"truncated: {max(there, 0)} of {media.size} bytes")
        return _compared(media, lambda: path.read_range(media.offset, media.size))

    @contextlib.contextmanager
    def _told(self, media: Media) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise BadInput(f"{os.strerror(errno.ENOENT)}: {media.source}") from error
        except OSError as error:
            if not self._is_local:  # A bucket that does not answer says nothing about the file.
                raise
            raise BadInput(f"{error.strerror or type(error).__name__}: {media.source}") from error


def _compared(media: Media, read: Callable[[], bytes]) -> bytes:
    """Returns a range of bytes once it has its checksum, if that is known.

    Raises:
      RuntimeError: if it has another one, again and again.
    """
    for _ in range(_TRIES):
        data = read()
        if media.crc32c in (-1, google_crc32c.value(data)):
            return data
    raise RuntimeError(f"{media.source} came with other bytes than when it was listed")


def _check_size(size: int) -> None:
    if size > MAX_ENCODED:
        raise BadInput(f"too large: {size} bytes, {MAX_ENCODED} are accepted")
