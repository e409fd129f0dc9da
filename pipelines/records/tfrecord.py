"""TFRecord shards with an offset index beside each, for random access.

A shard `x.tfrecord` has an index `x.idx`: the offset of every record's frame and, last, the file's
length, as little-endian uint64.

Framing source: TensorFlow `core/lib/io/record_writer.cc`: length u64, masked crc32c of it u32,
data, masked crc32c of the data u32.
"""

import array
import hashlib
import os
import struct
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from infra.store.stored_folder import StoredFolder, open_stored_folder

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
INDEX_ENDING = ".idx"

_PIECE = 16 << 20
"""Size of the pieces in which a shard is copied [bytes]."""

_MAX_RECORD = 128 << 20
"""Longest record of others that is read [bytes]: a packed file of a few bytes may state any."""

_REREADS = 3
"""Further reads over a network of records whose checksum does not match."""


def index_path(shard: str | os.PathLike[str]) -> Path:
    """Returns the path of a shard's index."""
    return Path(shard).with_suffix(INDEX_ENDING)


class Frames:
    """Appends records to an open file; memory holds only their offsets.

    Attributes:
      sha256: digest of the bytes written [hex].
      size: number of bytes written [bytes].
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.sha256()
        self._offsets = array.array("Q", [0])

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    @property
    def size(self) -> int:
        return self._offsets[-1]

    @property
    def index(self) -> bytes:
        """The content of the index file for these records."""
        return np.asarray(self._offsets, dtype="<u8").tobytes()

    def write(self, data: bytes) -> None:
        """Appends one record."""
        # bytes 0 .. 8    8 .. 12        12 .. 12 + n   12 + n .. 16 + n
        #       length n  crc of length  data           crc of data
        length = struct.pack("<Q", len(data))
        frame = b"".join(
            (length, _FOOTER.pack(_masked_crc(length)), data, _FOOTER.pack(_masked_crc(data)))
        )
        self._file.write(frame)
        self._digest.update(frame)
        self._offsets.append(self._offsets[-1] + len(frame))

    def extend(self, shard: BinaryIO, index: bytes) -> None:
        """Appends all records of another shard, given its file and the content of its index."""
        while piece := shard.read(_PIECE):
            self._file.write(piece)
            self._digest.update(piece)
        # Frames do not depend on their place in a file, so a shard is copied as it is, and only its
        # offsets move:  index [0, 40, 90] after 200 bytes ─▶ [.., 240, 290].
        start = self._offsets[-1]
        self._offsets.extend(start + int(end) for end in np.frombuffer(index, dtype="<u8")[1:])


class ShardWriter:
    """Writes one shard under a temporary name, until `commit`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._partial = Path(f"{path}.{os.getpid()}-{threading.get_ident()}.partial")
        self._file = self._partial.open("wb")
        self._frames = Frames(self._file)

    def write(self, data: bytes) -> None:
        """Appends one record."""
        self._frames.write(data)

    def commit(self) -> int:
        """Gives the shard and its index their names, and returns the number of records."""
        self._file.close()
        # The index first: whoever sees the shard finds its index beside it.
        index = index_path(self.path)
        partial_index = self._partial.with_suffix(".idx-partial")
        partial_index.write_bytes(self._frames.index)
        partial_index.replace(index)
        self._partial.replace(self.path)
        return len(self._frames)


def write_shard(path: str | os.PathLike[str], records: Iterable[bytes]) -> int:
    """Writes one shard and its index, atomically each, and returns the number of records."""
    writer = ShardWriter(path)
    for data in records:
        writer.write(data)
    return writer.commit()


HEADER_SIZE = _HEADER.size
"""Size of what precedes a record's data [bytes]."""


def is_header(head: bytes) -> bool:
    """Returns whether some bytes are the header of a record, by its checksum."""
    return len(head) == HEADER_SIZE and _HEADER.unpack(head)[1] == _masked_crc(head[:8])


def read_frames(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yields (offset of its data, data) of every record of a TFRecord file; needs no index.

    Raises:
      ValueError: at the first damaged record.
    """
    offset = 0
    while header := file.read(_HEADER.size):
        if not is_header(header):
            raise ValueError(f"damaged record header at byte {offset}")
        length, _ = _HEADER.unpack(header)
        if length > _MAX_RECORD:
            raise ValueError(f"record {offset} bytes in has {length} bytes by its header")
        data = b"".join(_read_frame_pieces(file, length))
        if len(data) != length or file.read(_FOOTER.size) != _FOOTER.pack(_masked_crc(data)):
            raise ValueError(f"record {offset} bytes in is damaged or cut off")
        yield offset + _HEADER.size, data
        offset += _HEADER.size + length + _FOOTER.size


def _read_frame_pieces(file: BinaryIO, length: int) -> Iterator[bytes]:
    """Yields up to `length` bytes: memory grows with what the file has, not with what it states."""
    while length and (piece := file.read(min(length, _PIECE))):
        yield piece
        length -= len(piece)


class Shard:
    """Random access to the records of one shard. Safe to share between threads.

    Args:
      name: the shard's path, or its name in `place`.
      place: the place that holds it; None for a folder on this machine.

    Raises:
      ValueError: if the shard and its index do not belong together.
    """

    def __init__(self, name: str | os.PathLike[str], place: StoredFolder | None = None) -> None:
        if place is None:
            place, name = open_stored_folder(Path(name).parent), Path(name).name
        self._place, self._name = place, str(name)
        self.path = f"{self._place.uri}/{self._name}"
        # Index of three records, in a file of 130 bytes:  [0, 40, 90, 130]
        #
        #   record 1  =  bytes 40 .. 90     length = 130 at the end, or the two files do not fit
        index = self._place.local_folder(INDEX_ENDING) / index_path(self._name)
        self._offsets = _read_index(index)
        try:
            size = self._place.size(self._name)
        except FileNotFoundError:
            raise FileNotFoundError(f"{self.path} is missing; prepare it again.") from None
        if int(self._offsets[-1]) != size:
            raise ValueError(
                f"{self.path} has {size} bytes, its index says {self._offsets[-1]}; prepare it "
                f"again."
            )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, position: int) -> bytes:
        """Returns the data of one record.

        Raises:
          ValueError: if its checksum does not match.
        """
        if not 0 <= position < len(self):
            raise IndexError(f"position must be in 0..{len(self) - 1}, got {position}.")
        return self.read(position, position + 1)[0]

    def num_bytes(self, start: int, stop: int) -> int:
        """Returns the size of records start..stop-1 with their framing [bytes]."""
        return int(self._offsets[stop] - self._offsets[start])

    def read(self, start: int, stop: int) -> list[bytes]:
        """Returns the data of records start..stop-1, read in one piece.

        Raises:
          ValueError: if the checksum of one does not match.
          OSError: if they cannot be read.
        """
        # Not a memory map: its pages would count as this process's memory.
        first = int(self._offsets[start])
        for tries_left in range(0 if self._place.is_local else _REREADS, -1, -1):
            size, fresh = self.num_bytes(start, stop), tries_left < _REREADS
            frames = self._place.read(self._name, first, size, fresh=fresh)
            try:
                return [
                    self._cut_record_from_frames(frames, first, position)
                    for position in range(start, stop)
                ]
            except ValueError:
                # Bytes may be damaged on the network, so they are read again before this fails.
                if not tries_left:
                    raise
        raise AssertionError

    def _cut_record_from_frames(self, frames: bytes, first: int, position: int) -> bytes:
        begin, end = (int(self._offsets[p]) - first for p in (position, position + 1))
        head = frames[begin : begin + _HEADER.size]
        data = frames[begin + _HEADER.size : end - _FOOTER.size]
        (crc,) = _FOOTER.unpack_from(frames, end - _FOOTER.size)
        if not is_header(head) or _HEADER.unpack(head)[0] != len(data) or crc != _masked_crc(data):
            raise ValueError(f"record {position} of {self.path} is damaged; prepare it again.")
        return data


def _read_index(path: Path) -> np.ndarray:
    """Returns the offsets in an index.

    Raises:
      ValueError: if they are no offsets of frames, one after the other, from 0 on.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing; prepare the dataset again.") from None
    offsets = np.frombuffer(data[: len(data) // 8 * 8], dtype="<u8")
    # As signed, so that one that goes back shows as a step below 0.
    steps = np.diff(offsets.astype(np.int64))
    least = _HEADER.size + _FOOTER.size
    if len(data) % 8 or not len(offsets) or offsets[0] or (steps < least).any():
        raise ValueError(f"{path} is no index of records; prepare the dataset again.")
    return offsets


def _masked_crc(data: bytes) -> int:
    crc = _crc32c(data)
    # The mask of TFRecord: rotated by 15 bits, plus a constant.
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
