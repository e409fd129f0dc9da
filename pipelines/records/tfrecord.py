"""TFRecord shards with an offset index beside each, for random access.

A shard `x.tfrecord` has an index `x.idx`: little-endian uint64 offsets of every record's frame,
and the file's length last.

Framing source: TensorFlow `core/lib/io/record_writer.cc`: length u64, masked crc32c of it u32,
data, masked crc32c of the data u32.
"""

import array
import os
import struct
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path

import numpy as np

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
FRAME_OVERHEAD = _HEADER.size + _FOOTER.size
"""Bytes of framing around one record's data."""


def index_path(shard: str | os.PathLike[str]) -> Path:
    """Returns where the index of a shard lies."""
    return Path(shard).with_suffix(".idx")


class ShardWriter:
    """One shard being written, beside its final name until `commit`; memory does not grow."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._partial = Path(f"{path}.{os.getpid()}-{threading.get_ident()}.partial")
        self._file = self._partial.open("wb")
        self._offsets = array.array("Q", [0])

    def write(self, data: bytes) -> None:
        """Appends one record."""
        length = struct.pack("<Q", len(data))
        self._file.write(length + _FOOTER.pack(_masked_crc(length)))
        self._file.write(data + _FOOTER.pack(_masked_crc(data)))
        self._offsets.append(self._offsets[-1] + len(data) + FRAME_OVERHEAD)

    def commit(self) -> int:
        """Gives the shard and its index their names, and returns the number of records."""
        self._file.close()
        index = index_path(self.path)
        partial_index = self._partial.with_suffix(".idx-partial")
        partial_index.write_bytes(np.asarray(self._offsets, dtype="<u8").tobytes())
        partial_index.replace(index)
        self._partial.replace(self.path)
        return len(self._offsets) - 1


def write_shard(path: str | os.PathLike[str], records: Iterable[bytes]) -> int:
    """Writes one shard and its index, atomically each, and returns the number of records."""
    writer = ShardWriter(path)
    for data in records:
        writer.write(data)
    return writer.commit()


class Shard:
    """Random access to the records of one shard. Safe to share between threads."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._offsets = np.frombuffer(index_path(path).read_bytes(), dtype="<u8")
        size = self.path.stat().st_size
        if len(self._offsets) == 0 or int(self._offsets[-1]) != size:
            raise ValueError(
                f"{self.path} has {size} bytes, its index says "
                f"{self._offsets[-1] if len(self._offsets) else 'nothing'}; prepare it again."
            )
        self._fd: int | None = None

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, position: int) -> bytes:
        """Returns the data of one record.

        Raises:
          ValueError: if its checksum does not match.
        """
        if not 0 <= position < len(self):
            raise IndexError(f"position must be in 0..{len(self) - 1}, got {position}.")
        # Threads that come first together open it each; what they open is closed with the shard.
        if self._fd is None:
            fd = os.open(self.path, os.O_RDONLY)
            weakref.finalize(self, os.close, fd)
            self._fd = fd
        start, end = int(self._offsets[position]), int(self._offsets[position + 1])
        # Not a memory map: its pages count as this process's memory until others need them.
        frame = os.pread(self._fd, end - start, start)
        length, _ = _HEADER.unpack_from(frame)
        data = frame[_HEADER.size : -_FOOTER.size]
        (crc,) = _FOOTER.unpack_from(frame, len(frame) - _FOOTER.size)
        if length != len(data) or crc != _masked_crc(data):
            raise ValueError(f"record {position} of {self.path} is damaged; prepare it again.")
        return data

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_fd": None}


def _masked_crc(data: bytes) -> int:
    crc = _crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


try:
    from google_crc32c import value as _crc32c  # pyright: ignore[reportAssignmentType]
except ImportError:  # An accelerator machine has only JAX's packages; this is slow but right.
    _TABLE: list[int] = []
    for _byte in range(256):
        for _ in range(8):
            _byte = _byte >> 1 ^ (0x82F63B78 if _byte & 1 else 0)
        _TABLE.append(_byte)

    def _crc32c(data: bytes) -> int:
        crc = 0xFFFFFFFF
        for byte in data:
            crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
        return crc ^ 0xFFFFFFFF
