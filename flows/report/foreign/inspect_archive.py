"""Reads the archives of inspect_ai, without its library.

    DATE_TASK_ID.eval               a zip archive:
        header.json                 the log without its samples
        samples/ID_epoch_N.json     a sample

Members are compressed by Zstandard (method 93) since 2026, by Deflate before.

Source: inspect_ai, src/inspect_ai/log/_recorders/eval.py; .ZIP File Format Specification 6.3.10.
"""

import contextlib
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.report.foreign.item_log import ItemLogError
from flows.report.foreign.log_checks import MAX_BYTES, damage_errors, parse_object

_HEADER = "header.json"
_SAMPLE = re.compile(r"samples/.+_epoch_\d+\.json")

_ZSTD = 93
_CHUNK = 2**20
"""Bytes that are unpacked at once: the size that a damaged archive states may be absurd."""

_LOCAL_HEADER = struct.Struct("<4s22x2H")
"""Signature, length of the name and length of the extra field [bytes] before a member's data.

Source: the specification, sec. 4.3.7.
"""


def read_archive(path: Path) -> tuple[dict[str, Any], Iterator[tuple[str, dict[str, Any]]]]:
    """Returns the log without its samples, and an iterator over the place and data of each.

    Raises:
      ItemLogError: if it is damaged, or a member is too large.
    """
    with _open_archive(path) as archive:
        if _HEADER not in archive.namelist():
            raise ItemLogError(
                f"{path}: has no {_HEADER}, since its run did not end; leave it out, or run "
                f"`inspect eval-retry` on it."
            )
        header = _read_member(path, archive, archive.getinfo(_HEADER))
    return header, _samples(path)


def _samples(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with _open_archive(path) as archive:
        for info in archive.infolist():
            if _SAMPLE.fullmatch(info.filename):
                yield f"{path}: {info.filename}", _read_member(path, archive, info)


@contextlib.contextmanager
def _open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    with damage_errors(f"{path}: is no archive, or damaged"), zipfile.ZipFile(path) as archive:
        yield archive


def _read_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> dict[str, Any]:
    """Returns a member's object; it is read as far as its stated size, and no further."""
    place = f"{path}: {info.filename}"
    if info.file_size > MAX_BYTES:
        raise ItemLogError(
            f"{place}: must be at most {MAX_BYTES} bytes, got {info.file_size}; leave it out."
        )
    with damage_errors(f"{place}: is damaged"):
        try:
            if info.compress_type == _ZSTD:
                data = _read_zstd(path, info)
            else:
                with archive.open(info) as file:
                    data = file.read(info.file_size)
        except NotImplementedError:
            raise ItemLogError(
                f"{place}: compression must be Zstandard or Deflate, got method "
                f"{info.compress_type}; convert it: "
                f"`inspect log convert {path} --to json --output-dir DIR`."
            ) from None
    return parse_object(data, place)


def _read_zstd(path: Path, info: zipfile.ZipInfo) -> bytes:
    """Returns the bytes of a member that Python's archives read from version 3.14 on only.

    Raises:
      OSError, ValueError: if it is damaged.
    """
    import pyarrow as pa  # Here: it takes long, and only these archives need it.

    with path.open("rb") as file:
        file.seek(info.header_offset)
        signature, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        if signature != b"PK\x03\x04":
            raise ValueError("no member where its index says")
        file.seek(name + extra, 1)
        packed = file.read(min(info.compress_size, path.stat().st_size))
    data = bytearray()
    with pa.input_stream(pa.py_buffer(packed), compression="zstd") as stream:
        while len(data) <= info.file_size and (chunk := stream.read(_CHUNK)):
            data += chunk
    if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
        raise ValueError("its bytes are not those that its checksum is of")
    return bytes(data)
