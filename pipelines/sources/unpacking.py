"""Opening of files that may be packed, whatever their names say."""

import bz2
import contextlib
import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

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
    return _opener(file) is not None


@contextlib.contextmanager
def unpack(file: BinaryIO) -> Iterator[BinaryIO]:
    """Yields the content of an open file: the file itself, if it is not packed."""
    opener = _opener(file)
    with opener(file) if opener else contextlib.nullcontext(file) as content:
        yield cast(BinaryIO, content)


@contextlib.contextmanager
def open_unpacked(path: Path) -> Iterator[BinaryIO]:
    """Yields a file's content, unpacked if it is packed.

    Raises:
      ValueError: if the file is damaged, naming it.
    """
    # Opened outside of the `try`: a file that cannot be opened may well be whole.
    with path.open("rb") as file:
        try:
            with unpack(cast(BinaryIO, file)) as content:
                yield content
        except DAMAGE as error:
            if is_of_machine(error):
                raise
            raise ValueError(f"{path.name} is damaged: {error}") from error


def _opener(file: BinaryIO):
    head = file.read(_HEAD)
    file.seek(0)
    if head.startswith(_BZIP2) and head[4:] in _BLOCKS:
        return bz2.open
    return next((opener for mark, opener in _OPEN.items() if head.startswith(mark)), None)
