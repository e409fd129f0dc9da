"""A file that is read in ranges, block by block, the next one ahead while it goes forward."""

import io
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

BLOCK = 8 << 20
"""Bytes fetched at a time: a request's 20 to 50 ms are then little of its time."""

_KEPT = 3
"""Blocks held in memory: the one that is read, the one before it, and the one ahead."""


class Blocks:
    """The blocks of a file that were read last; of one thread.

    Args:
      read: (start, length) -> that range of the file, by a request.
      size: of the file [bytes].
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self.size = size
        self._read = read
        self._blocks: OrderedDict[int, Future[bytes]] = OrderedDict()
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="ahead")  # No thread until used.

    def block(self, number: int) -> bytes:
        """Returns a block, and has the next one fetched if the one before was read, too."""
        if number not in self._blocks:
            found: Future[bytes] = Future()
            found.set_result(self._fetch(number))
            self._blocks[number] = found
        self._blocks.move_to_end(number)
        following = number + 1
        is_forward = number - 1 in self._blocks and following * BLOCK < self.size
        if is_forward and following not in self._blocks:
            self._blocks[following] = self._ahead.submit(self._fetch, following)
        while len(self._blocks) > _KEPT:
            self._blocks.popitem(last=False)
        return self._blocks[number].result()

    def held(self, start: int, length: int) -> bytes | None:
        """Returns a range if its blocks are in memory, else None; nothing is fetched."""
        numbers = range(start // BLOCK, -(-(start + length) // BLOCK))
        if any(number not in self._blocks for number in numbers):
            return None
        data = b"".join(self._blocks[number].result() for number in numbers)
        begin = start - numbers.start * BLOCK
        return data[begin : begin + length]

    def _fetch(self, number: int) -> bytes:
        start = number * BLOCK
        return self._read(start, min(BLOCK, self.size - start))


class Ranged(io.RawIOBase):
    """A file over its blocks; going forward it reads each byte once."""

    def __init__(self, blocks: Blocks) -> None:
        super().__init__()
        self._blocks, self._position = blocks, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        ends = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._blocks.size}
        if ends[whence] + offset < 0:
            raise ValueError(f"offset must not lead before the file's beginning, got {offset}.")
        self._position = ends[whence] + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        if self._position >= self._blocks.size:
            return 0
        number, begin = divmod(self._position, BLOCK)
        data = self._blocks.block(number)[begin : begin + len(buffer)]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
