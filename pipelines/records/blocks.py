"""Blocks of neighbouring records, read ahead by threads and kept in bounded memory.

A request to a bucket takes tens of milliseconds whatever it brings, so records are fetched by the
megabyte, before they are needed, many megabytes at a time.
"""

import collections
import functools
import os
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor

BLOCK_BYTES = 2**20
"""Of a block, about [bytes]. Half of the time of a request that fetches it from a bucket is
waiting, at 20 ms to the first byte and 50 MB/s."""

MAX_BLOCK = 256
"""Records of a block, at most: tiny records need not come by the thousand."""

_AT_ONCE = 16
"""Blocks on their way at a time; with the figures above, some 400 MB/s."""

_LIMIT_GB = 4.0
"""Default of PARCEL_READ_GB: what blocks may take of a process's memory [GB]."""

Records = list[bytes]


class Blocks:
    """The blocks that this process has read, or reads; the least recently used goes first.

    Args:
      limit: of what they hold [bytes].
    """

    def __init__(self, limit: float) -> None:
        self._limit, self._held = limit, 0
        self._known: collections.OrderedDict[Hashable, tuple[Future[Records], int]]
        self._known = collections.OrderedDict()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="blocks")

    def get(self, key: Hashable, size: int, read: Callable[[], Records]) -> Future[Records]:
        """Returns a block that is there, or will be.

        Args:
          key: tells it from every other.
          size: of its records together [bytes].
          read: fetches it.
        """
        with self._lock:
            known = self._known.get(key)
            # One that failed is tried again by whoever asks next.
            if known and not (known[0].done() and known[0].exception()):
                self._known.move_to_end(key)
                return known[0]
            if known:
                self._drop(key)
            while self._known and self._held + size > self._limit:
                self._drop(next(iter(self._known)))
            future = self._pool.submit(read)
            self._known[key] = future, size
            self._held += size
            return future

    def _drop(self, key: Hashable) -> None:
        self._held -= self._known.pop(key)[1]


def blocks() -> Blocks:
    """Returns those of this process; a fork has its own, since threads do not survive it."""
    return _blocks_of(os.getpid())


@functools.cache
def _blocks_of(process: int) -> Blocks:
    del process
    return Blocks(1e9 * float(os.environ.get("PARCEL_READ_GB", _LIMIT_GB)))
