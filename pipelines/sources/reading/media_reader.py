"""Reads the encoded bytes of media from disk, a bucket or the work folder."""

import collections
import contextlib
import errno
import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google_crc32c

from infra.store.backend import StoreBackend
from infra.store.raw_path import local_copy
from pipelines.records.schema import BadInput
from pipelines.sources.reading.item import Item, Media

MAX_ENCODED = 512 << 20
"""Largest encoded image read into memory [bytes]; the largest photographs have some 100 MB."""

_TRIES = 4
"""Reads of a range whose checksum does not match, before that is an error."""

_RUN = 2 << 20
"""Most bytes of neighbouring images in one request, unless a single image has more."""

_GAP = 64 << 10
"""Largest gap between neighbours, which is read and dropped [bytes]: archive headers and texts."""

_PREFETCH_BYTES = 8 << 20
"""Limit on the images fetched ahead, once more than `_MAX_REQUESTS` items wait [bytes]; a request
takes longer than decoding an image."""

_MAX_PREFETCH_BYTES = 64 << 20
"""Limit on the images fetched ahead, however few items wait [bytes]."""

_MAX_ITEMS = 1000
"""Most items that wait; many fit in `_PREFETCH_BYTES` if they show videos or share images."""

_OF_FILE = (
    errno.EACCES,
    errno.EPERM,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
)
"""Errors that are the file's own, beside its absence, and will come again."""

_UNKNOWN = 1 << 20
"""Size that is assumed for an image of unknown size [bytes]."""

_MAX_REQUESTS = 16
"""Requests in parallel."""


class MediaReader:
    """Reads media of one data root. Not thread-safe.

    Args:
      data_root: the data root, opened by `raw_path`.
      unpacked: folder of the files in `Media.store`; None if nothing was unpacked.
    """

    def __init__(self, data_root: Path, unpacked: StoreBackend | None = None) -> None:
        self._root, self._unpacked = data_root, unpacked
        self._is_local = isinstance(data_root, Path)
        self._pool = ThreadPoolExecutor(_MAX_REQUESTS, thread_name_prefix="media")
        self._requests: dict[Media, Future[dict[Media, bytes]]] = {}
        self._waiting_uses: collections.Counter[Media] = collections.Counter()
        self._bytes = 0

    def expected(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items and, from a bucket, fetches the images of the following items meanwhile.

        Images that are neighbours in one file are fetched together, since a request for each would
        take more processor time than decoding it.
        """
        if self._is_local:
            yield from items
            return
        # Items wait while their images are on the way; neighbours in a file form a run, one
        # request:
        #
        #   items    a b c d e f …        runs   [a b c]   [d]   [e f …
        #   yielded  ▲ oldest                    fetched         still open
        waiting: collections.deque[Item] = collections.deque()
        run: list[Media] = []
        for item in items:
            waiting.append(item)
            for media in self._new_of(item):
                if run and not _are_neighbours(run, media):
                    self._fetch_media_run(run)
                    run = []
                run.append(media)
            while self._is_full(len(waiting)):
                # The next item's images may still be in the open run: then fetch the run now.
                pictures = (media for media in waiting[0].media if not media.video)
                if any(media not in self._requests for media in pictures):
                    self._fetch_media_run(run)
                    run = []
                yield waiting[0]
                self._release_item_media(waiting.popleft())
        self._fetch_media_run(run)
        for item in waiting:
            yield item
            self._release_item_media(item)

    def read(self, media: Media) -> bytes:
        """Returns the encoded bytes of an image.

        Raises:
          BadInput: if the file is missing, unreadable or shorter than listed.
        """
        request = self._requests.get(media)
        data = request.result().get(media) if request is not None else None
        return self._read_media(media) if data is None else data

    @contextlib.contextmanager
    def local(self, media: Media) -> Iterator[tuple[str, str]]:
        """Yields the path of a video's file on this machine, and its sha256 [hex].

        Raises:
          BadInput: if it cannot be read.
        """
        # The copy of a bucket's object lives as long as the caller uses it.
        with contextlib.ExitStack() as stack:
            with self._as_bad_input(media):
                path = stack.enter_context(local_copy(self._root / media.path))
                with _open_file(path) as file:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            yield str(path), sha256

    def sha256(self, media: Media) -> str:
        """Returns the digest of an image's encoded bytes or of a video's whole file [hex].

        Raises:
          BadInput: if they cannot be read.
        """
        if not media.video:
            return hashlib.sha256(self.read(media)).hexdigest()
        with self.local(media) as (_, sha256):
            return sha256

    def has(self, media: Media) -> bool:
        """Whether the file of a media exists."""
        path = self._root / media.path
        return os.path.isfile(path) if self._is_local else path.is_file()

    def _is_full(self, num_waiting: int) -> bool:
        if self._bytes > _MAX_PREFETCH_BYTES or num_waiting > _MAX_ITEMS:
            return True
        return self._bytes > _PREFETCH_BYTES and num_waiting > _MAX_REQUESTS

    def _new_of(self, item: Item) -> Iterator[Media]:
        """Yields the images of an item that no waiting item has asked for yet."""
        for media in item.media:
            if media.video:
                continue
            self._waiting_uses[media] += 1
            if self._waiting_uses[media] == 1:
                self._bytes += _media_size(media)
                yield media

    def _release_item_media(self, item: Item) -> None:
        for media in item.media:
            if media.video:
                continue
            self._waiting_uses[media] -= 1
            if not self._waiting_uses[media]:
                del self._waiting_uses[media], self._requests[media]
                self._bytes -= _media_size(media)

    def _fetch_media_run(self, run: list[Media]) -> None:
        if run:
            self._requests |= dict.fromkeys(run, self._pool.submit(self._read_run, run))

    def _read_run(self, run: list[Media]) -> dict[Media, bytes]:
        """Reads neighbours by one request; `read` fetches images that are missing in the result."""
        first, last = run[0], run[-1]
        if len(run) == 1:
            return {first: self._read_media(first)}
        # One range over all of the run, gaps included, is cut into its images afterwards. Whatever
        # does not match its checksum is left out; `read` asks for it again by itself.
        start, end = first.offset, last.offset + last.size
        try:
            if first.store:
                assert self._unpacked is not None
                data = self._unpacked.read_range(first.store, start, end - start)
            else:
                path: Any = self._root / first.path
                data = path.read_range(start, end - start) if path.state().size >= end else b""
        except FileNotFoundError:
            return {}
        parts = {m: data[m.offset - start : m.offset - start + m.size] for m in run} if data else {}
        return {m: part for m, part in parts.items() if _matches_checksum(m, part)}

    def _read_media(self, media: Media) -> bytes:
        with self._as_bad_input(media):
            if media.store:
                return self._from_unpacked(media)
            if not self._is_local:
                return self._from_bucket(media)
            with _open_file(self._root / media.path) as file:
                size = media.size if media.size >= 0 else os.fstat(file.fileno()).st_size
                _check_encoded_size(size)
                file.seek(media.offset)
                data = file.read(media.size)
        if media.size >= 0 and len(data) != media.size:
            raise BadInput(f"truncated: {len(data)} of {media.size} bytes")
        return data

    def _from_unpacked(self, media: Media) -> bytes:
        unpacked = self._unpacked
        assert unpacked is not None
        return _read_until_matching(
            media, lambda: unpacked.read_range(media.store, media.offset, media.size)
        )

    def _from_bucket(self, media: Media) -> bytes:
        path: Any = self._root / media.path
        if media.size < 0:
            data = path.read_bytes()
            _check_encoded_size(len(data))
            return data
        _check_encoded_size(media.size)
        num_available = path.state().size - media.offset
        if num_available < media.size:
            raise BadInput(f"truncated: {max(num_available, 0)} of {media.size} bytes")
        return _read_until_matching(media, lambda: path.read_range(media.offset, media.size))

    @contextlib.contextmanager
    def _as_bad_input(self, media: Media) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise BadInput(f"{os.strerror(errno.ENOENT)}: {media.source}") from error
        except OSError as error:
            # Otherwise the disk, the process's limits or the bucket are to blame, not the file.
            if not self._is_local or error.errno not in _OF_FILE:
                raise
            raise BadInput(f"{error.strerror}: {media.source}") from error


@contextlib.contextmanager
def _open_file(path: Path) -> Iterator[io.BufferedReader]:
    """Opens a file on this machine; a pipe or a device, which may have no end, is none.

    Raises:
      BadInput: if it is neither a file nor a folder; for a folder it is IsADirectoryError.
    """
    # A pipe that nobody writes to would block the opening itself.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise BadInput(f"neither a file nor a folder: {path.name}")
        yield file


def _media_size(media: Media) -> int:
    return media.size if media.size >= 0 else _UNKNOWN


def _are_neighbours(run: list[Media], media: Media) -> bool:
    """Returns whether one request may fetch an image together with the run before it."""
    first, last = run[0], run[-1]
    if (media.path, media.store) != (last.path, last.store) or min(last.size, media.size) < 0:
        return False
    is_near = 0 <= media.offset - (last.offset + last.size) <= _GAP
    return is_near and media.offset + media.size - first.offset <= _RUN


def _matches_checksum(media: Media, data: bytes) -> bool:
    return media.crc32c in (-1, google_crc32c.value(data))


def _read_until_matching(media: Media, read: Callable[[], bytes]) -> bytes:
    """Returns a range of bytes whose checksum matches, if that is known.

    Raises:
      RuntimeError: if it matches in none of `_TRIES` reads.
    """
    for _ in range(_TRIES):
        data = read()
        if _matches_checksum(media, data):
            return data
    raise RuntimeError(f"{media.source} came with other bytes than when it was listed")


def _check_encoded_size(size: int) -> None:
    if size > MAX_ENCODED:
        raise BadInput(f"too large: {size} bytes, {MAX_ENCODED} are accepted")
