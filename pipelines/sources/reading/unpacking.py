"""Opening of files that may be packed, whatever their names say."""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from pipelines.records.reasons import reason_of
from pipelines.records.schema import is_of_machine

PACKINGS = ("", ".bz2", ".gz", ".xz")
"""Extensions of the packings that are read; "" is a plain file."""

DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)
"""Errors of reading a damaged file, packed or not."""

_OPEN = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\0": lzma.open, b"\x5d\0\0\x80": lzma.open}
"""First bytes of a packed file -> function that opens it."""

_BZIP2, _BLOCKS = b"BZh", (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
"""First bytes of bzip2's file, and of its first block or of its end: "BZh" may begin a text."""

_HEAD = 10
"""Length of the longest of these beginnings [bytes]."""


def is_packed(file: BinaryIO) -> bool:
    """Returns whether an open file is packed; its position is its beginning before and after."""
    return _packed_file_opener(file) is not None


@contextlib.contextmanager
def unpack(file: BinaryIO) -> Iterator[BinaryIO]:
    """Yields the content of an open file: the file itself, if it is not packed."""
    opener = _packed_file_opener(file)
    with opener(file) if opener else contextlib.nullcontext(file) as content:
        yield cast(BinaryIO, content)


class DamagedFile(ValueError):
    """A file that cannot be read to its end; the message names it.

    Args:
      name: name of the file.
      reason: what is wrong with it.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} is damaged: {reason}")
        self._name, self._reason = name, reason

    def after(self, num_rows: int) -> str:
        """Returns the message for a file of which some rows could be read before the damage."""
        return (
            f"{self._name} is damaged after {num_rows:,} whole rows, which were read: "
            f"{self._reason}; what follows is lost"
        )


@contextlib.contextmanager
def open_lines(path: Path) -> Iterator[BinaryIO]:
    """Yields a text's bytes in UTF-8 without a byte order mark, unpacked if it is packed.

    Raises:
      DamagedFile: if it cannot be read to its end.
    """
    with _open_unpacked(path) as content:
        head = content.peek(len(codecs.BOM_UTF8))  # type: ignore[attr-defined]
        if head.startswith(codecs.BOM_UTF8):
            content.read(len(codecs.BOM_UTF8))
        is_utf16 = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        yield cast(
            BinaryIO,
            io.BufferedReader(_Utf8(cast(io.BufferedReader, content))) if is_utf16 else content,
        )


class _Utf8(io.RawIOBase):
    """Reads a UTF-16 text as UTF-8; half a character becomes a byte that UTF-8 does not have."""

    def __init__(self, content: io.BufferedReader) -> None:
        self._content, self._rest = content, b""
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            # Not `read`: where the file is damaged, it would lose what it has of a full block.
            data = self._content.read1(io.DEFAULT_BUFFER_SIZE)
            text = self._decoder.decode(data, final=not data)
            self._rest = text.encode().replace("\ufffd".encode(), b"\xff")
            if not data and not self._rest:
                return 0
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


@contextlib.contextmanager
def _open_unpacked(path: Path) -> Iterator[BinaryIO]:
    # Opened outside of the `try`: a file that cannot be opened may well be whole.
    with path.open("rb") as file:
        try:
            with unpack(cast(BinaryIO, file)) as content:
                yield content
        except DAMAGE as error:
            if is_of_machine(error):
                raise
            raise DamagedFile(path.name, reason_of(error)) from error


def _packed_file_opener(file: BinaryIO):
    head = file.read(_HEAD)
    file.seek(0)
    if head.startswith(_BZIP2) and head[4:] in _BLOCKS:
        return bz2.open
    return next((opener for mark, opener in _OPEN.items() if head.startswith(mark)), None)
