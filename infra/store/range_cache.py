"""Ranges of stored files on this machine's disk, so that all its processes read each once.

    <cache>/<sha256 of the file>/<first byte>-<length>     a range, whole; or not there

The cells of a sweep on one node read the same datasets, and start from the same checkpoints. What
lies here is not checked when it is read: who reads ranges has checksums of them, and asks for a
fresh one where one does not fit.
"""

import contextlib
import fcntl
import functools
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from infra.store.bounded import tidy

_LIMIT_GB = 100.0
"""Default of PARCEL_RANGES_GB: what ranges may take on this disk [GB]."""

_LARGEST = 0.5
"""Of the limit: a folder of more is not kept. Read once, it would drive out all others."""

_TIDIED_AFTER = 1 / 16
"""Of the limit, written by one process, after which it looks at what all have written."""

_PATIENCE = 10.0
"""How long a process waits for another one that fetches the same range [s]."""


class RangeCache:
    """Ranges by file; safe to share between threads and processes.

    Args:
      root: where; made when first used.
      limit: what they may take [bytes]; 0 keeps none.
    """

    def __init__(self, root: Path, limit: float) -> None:
        self._root, self._limit = root, limit
        self._written = limit  # The first that is added looks at what is there.

    def takes(self, size: int) -> bool:
        """Whether a folder of that size [bytes] is worth keeping."""
        return size <= _LARGEST * self._limit

    def get(
        self, sha256: str, start: int, length: int, read: Callable[[], bytes], *, fresh: bool
    ) -> bytes:
        """Returns a range.

        Args:
          sha256: of the whole file [hex].
          start: its first byte.
          length: [bytes].
          read: fetches it.
          fresh: whether it is fetched although it is there, which was wrong.
        """
        path = self._root / sha256 / f"{start}-{length}"
        found = None if fresh else _read(path, length)
        if found is not None:
            return found
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path):
            found = None if fresh else _read(path, length)
            if found is not None:
                return found
            data = read()
            with contextlib.suppress(OSError):  # A full disk costs others' requests, not the work.
                partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
                try:
                    partial.write_bytes(data)
                    partial.replace(path)
                finally:
                    partial.unlink(missing_ok=True)
        self._written += length
        if self._written >= _TIDIED_AFTER * self._limit:
            self._written = 0
            tidy(self._root, self._limit)
        return data


def range_cache(state: Path) -> RangeCache:
    """Returns the ranges that a state folder keeps."""
    return _of(state, 1e9 * float(os.environ.get("PARCEL_RANGES_GB", _LIMIT_GB)))


@functools.cache
def _of(state: Path, limit: float) -> RangeCache:
    return RangeCache(state / "cache" / "ranges", limit)


def _read(path: Path, length: int) -> bytes | None:
    """Returns a file's bytes; None where it is not there, or has another length."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data if len(data) == length else None


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Waits while another process fetches a range, but not for ever: it may be stopped."""
    claim = path.with_name(f"{path.name}.lock")
    deadline = time.monotonic() + _PATIENCE
    with claim.open("a") as lock:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.005)
        try:
            yield
        finally:
            claim.unlink(missing_ok=True)
