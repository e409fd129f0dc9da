"""A file that is read in ranges, block by block, with the next one fetched ahead.

A range comes without a checksum; a file that is read from end to end is compared with its checksum.
"""

import dataclasses
import io
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

BLOCK = 8 << 20
"""Bytes fetched at a time, enough to make a request's latency of 20 to 50 ms matter little."""

_MAX_BLOCKS = 3
"""Number of blocks held in memory: the current one, the one before it, and the one ahead."""


class RangeError(RuntimeError):
    """A stored range could not be read. Not an `OSError`: readers take that for a damaged file."""


class Sum(Protocol):
    """A checksum that grows, as those of `hashlib` and `google_crc32c` do."""

    def update(self, data: bytes, /) -> object:
        """Adds bytes."""
        ...

    def digest(self) -> bytes:
        """Returns the checksum of all that was added."""
        ...


@dataclasses.dataclass(frozen=True)
class WholeSum:
    """What a bucket knows of all bytes of a file.

    Attributes:
      begin: returns a checksum of nothing, to be updated.
      is_right: whether a digest is that of the file.
    """

    begin: Callable[[], Sum]
    is_right: Callable[[bytes], bool]


class BlockReader:
    """Reads a file by blocks, and keeps the last ones in memory; for use by one thread.

    Args:
      read: (start, length) -> that range of the file, by a request.
      size: size of the file [bytes].
      name: name of the file, for people.
      whole: checksum of the file; None if it is not known.
    """

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        size: int,
        name: str = "",
        whole: WholeSum | None = None,
    ) -> None:
        self.size = size
        self._read, self._name = read, name
        self._whole, self._sum, self._num_summed = whole, whole and whole.begin(), 0
        self._blocks: OrderedDict[int, Future[bytes]] = OrderedDict()
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="ahead")  # No thread until used.

    def block(self, number: int) -> bytes:
        """Returns a block, and starts to fetch the next one if the one before was read, too.

        Raises:
          RangeError: if it cannot be read, or it is the last of a file whose checksum differs.
        """
        # Reading forward keeps one block ahead (*), and the one before for a reader that steps
        # back:
        #
        #   block(0)   in memory: 0            not ahead yet, since a seek may follow
        #   block(1)   in memory: 0 1 2*       0 was read, too: this goes forward
        #   block(2)   in memory: 1 2 3*
        if number not in self._blocks:
            if number == 0:  # Another reading from the start is verified again.
                self._sum, self._num_summed = self._whole and self._whole.begin(), 0
            fetched: Future[bytes] = Future()
            fetched.set_result(self._fetch_block(number))
            self._blocks[number] = fetched
        self._blocks.move_to_end(number)
        following = number + 1
        is_forward = number - 1 in self._blocks and following * BLOCK < self.size
        if is_forward and following not in self._blocks:
            self._blocks[following] = self._ahead.submit(self._fetch_block, following)
        while len(self._blocks) > _MAX_BLOCKS:
            self._blocks.popitem(last=False)
        data = self._blocks[number].result()
        # The checksum is of the whole file, so it can be compared only if every block was added
        # once, in order. A reader that jumps about has checksums of its own.
        if number == self._num_summed:
            self._add_to_checksum(data)
        return data

    def range_in_memory(self, start: int, length: int) -> bytes | None:
        """Returns a range if all its blocks are in memory, else None; nothing is fetched."""
        numbers = range(start // BLOCK, -(-(start + length) // BLOCK))
        if any(number not in self._blocks for number in numbers):
            return None
        data = b"".join(self._blocks[number].result() for number in numbers)
        # The range begins somewhere in its first block: shift by what lies before it.
        begin = start - numbers.start * BLOCK
        return data[begin : begin + length]

    def _add_to_checksum(self, data: bytes) -> None:
        """Adds the next block to the checksum, which is compared after the last one."""
        self._num_summed += 1
        if self._whole is None or self._sum is None:
            return
        self._sum.update(data)
        is_all = self._num_summed * BLOCK >= self.size
        if is_all and not self._whole.is_right(self._sum.digest()):
            raise RangeError(
                f"the bytes received of {self._name} do not match its checksum; run it again"
            )

    def _fetch_block(self, number: int) -> bytes:
        start = number * BLOCK
        try:
            return self._read(start, min(BLOCK, self.size - start))
        except OSError as error:
            raise RangeError(str(error)) from error


class RangedFile(io.RawIOBase):
    """A file over its blocks; reading forward fetches each byte once."""

    def __init__(self, blocks: BlockReader) -> None:
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
        # At most to the end of this block; a buffered reader asks again for the rest.
        number, begin = divmod(self._position, BLOCK)
        data = self._blocks.block(number)[begin : begin + len(buffer)]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
