"""Blocks of neighbouring records, read ahead by threads and kept in bounded memory.

A request to a bucket takes tens of milliseconds whatever its size. So records are fetched in blocks
of a megabyte, before they are needed, and many blocks in parallel.
"""

import collections
import functools
import os
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor

BLOCK_BYTES = 2**20
"""Approximate size of a block [bytes]. At 20 ms to the first byte and 50 MB/s, fetching one from a
bucket is half waiting and half transfer."""

MAX_BLOCK = 256
"""Most records in a block, so that tiny records do not come by the thousand."""

_MAX_FETCHES = 16
"""Blocks fetched in parallel; with the figures above, some 400 MB/s."""

_LIMIT_GB = 4.0
"""Default of PARCEL_READ_GB: most memory that the blocks of a process may take [GB]."""

Records = list[bytes]


class BlockCache:
    """Cache of the blocks that this process has read or is reading; drops the least recently used.

    Args:
      limit: largest total size of the blocks [bytes].
    """

    def __init__(self, limit: float) -> None:
        self._limit, self._cached_bytes = limit, 0
        self._entries: collections.OrderedDict[Hashable, tuple[Future[Records], int]]
        self._entries = collections.OrderedDict()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_MAX_FETCHES, thread_name_prefix="blocks")

    def get(self, key: Hashable, size: int, read: Callable[[], Records]) -> Future[Records]:
        """Returns a block's future; a block that is not in the cache is fetched.

        Args:
          key: identifies the block.
          size: total size of its records [bytes].
          read: function that fetches it.
        """
        with self._lock:
            entry = self._entries.get(key)
            # A block that failed is fetched again at the next request.
            if entry and not (entry[0].done() and entry[0].exception()):
                self._entries.move_to_end(key)
                return entry[0]
            if entry:
                self._drop_cached_block(key)
            while self._entries and self._cached_bytes + size > self._limit:
                self._drop_cached_block(next(iter(self._entries)))
            # Counted when the fetch starts: this is the memory that it will take.
            future = self._pool.submit(read)
            self._entries[key] = future, size
            self._cached_bytes += size
            return future

    def _drop_cached_block(self, key: Hashable) -> None:
        self._cached_bytes -= self._entries.pop(key)[1]


def block_cache() -> BlockCache:
    """Returns this process's cache; a fork gets a new one, since threads do not survive a fork."""
    return _cache_of_process(os.getpid())


@functools.cache
def _cache_of_process(process: int) -> BlockCache:
    del process
    return BlockCache(1e9 * float(os.environ.get("PARCEL_READ_GB", _LIMIT_GB)))
