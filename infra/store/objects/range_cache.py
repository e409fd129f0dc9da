"""A cache of ranges of stored files on this machine's disk, so that its processes fetch each once.

    <cache>/<sha256 of the file>/<first byte>-<length>     a whole range, or absent

The cells of a sweep on one node read the same datasets, and start from the same checkpoints. Cached
ranges are not verified when they are read: readers have checksums of them, and ask for a fresh one
if one does not match.
"""

import contextlib
import fcntl
import functools
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from infra.file_locks import NoLocksError, lock_file
from infra.store.objects.eviction import evict_oldest_files

_LIMIT_GB = 100.0
"""Default of PARCEL_RANGES_GB: largest size of all ranges on this disk [GB]."""

_MAX_FOLDER_SHARE = 0.5
"""Largest folder whose ranges are kept [fraction of the limit]; one read of a larger folder would
drive out all others."""

_TIDIED_AFTER = 1 / 16
"""Bytes after which a writing process checks the size of the cache [fraction of the limit]."""


class RangeCache:
    """Ranges by file; safe to share between threads and processes.

    Args:
      root: folder of the cache; made when first used.
      limit: largest size of all ranges [bytes]; 0 keeps none.
      max_wait: longest wait for another process that fetches the same range [s].
    """

    def __init__(self, root: Path, limit: float, max_wait: float = 10.0) -> None:
        self._root, self._limit, self._max_wait = root, limit, max_wait
        self._written = limit  # So the first range that is added checks the size of the cache.

    def accepts(self, size: int) -> bool:
        """Whether a folder of that size [bytes] is worth keeping."""
        return size <= _MAX_FOLDER_SHARE * self._limit

    def get(
        self, sha256: str, start: int, length: int, read: Callable[[], bytes], *, fresh: bool
    ) -> bytes:
        """Returns a range, from the cache if it is there.

        Args:
          sha256: digest of the whole file [hex].
          start: first byte of the range.
          length: length of the range [bytes].
          read: fetches the range.
          fresh: whether to fetch it even if it is in the cache, because that one was wrong.
        """
        path = self._root / sha256 / f"{start}-{length}"
        cached = None if fresh else _read_range_file(path, length)
        if cached is not None:
            return cached
        path.parent.mkdir(parents=True, exist_ok=True)
        # Cells of a sweep that start together read the same first range: one fetches it, and the
        # others find it in the cache when their turn comes.
        with _exclusive_fetch(path, self._max_wait):
            cached = None if fresh else _read_range_file(path, length)
            if cached is not None:
                return cached
            data = read()
            with contextlib.suppress(OSError):  # With a full disk the range is only not cached.
                # Renamed when whole, so a reader never finds a part of a range.
                partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
                try:
                    partial.write_bytes(data)
                    partial.replace(path)
                finally:
                    partial.unlink(missing_ok=True)
        # Walking the cache for every range would cost more than the ranges: look only now and then.
        self._written += length
        if self._written >= _TIDIED_AFTER * self._limit:
            self._written = 0
            evict_oldest_files(self._root, self._limit)
        return data


def range_cache(state: Path) -> RangeCache:
    """Returns the cache of ranges in a state folder."""
    return _range_cache(state, 1e9 * float(os.environ.get("PARCEL_RANGES_GB", _LIMIT_GB)))


@functools.cache
def _range_cache(state: Path, limit: float) -> RangeCache:
    return RangeCache(state / "cache" / "ranges", limit)


def _read_range_file(path: Path, length: int) -> bytes | None:
    """Returns a file's bytes; None if it is absent, or has another length."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data if len(data) == length else None


@contextlib.contextmanager
def _exclusive_fetch(path: Path, max_wait: float) -> Iterator[None]:
    """Waits while another process fetches a range, but not for ever, since it may be stopped."""
    claim = path.with_name(f"{path.name}.lock")
    deadline = time.monotonic() + max_wait
    with claim.open("a") as lock:
        # Polled, since `flock` cannot wait for a limited time. After the deadline the range is
        # fetched by both, which costs a request and does no harm.
        while time.monotonic() < deadline:
            try:
                lock_file(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.005)
            except NoLocksError:
                break
        try:
            yield
        finally:
            claim.unlink(missing_ok=True)
