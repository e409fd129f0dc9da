"""Changes that make odd inputs of whole ones: of bytes, of JSON and YAML, of headers."""

import copy
import io
import json
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import google_crc32c
import numpy as np

Change = Callable[[random.Random, bytes], bytes]

_ODD_BYTES = (
    b"\x00", b"\xff", b"\xff" * 8, bytes(8), b"-1", b"1e999", b"NaN", b"null", b"[]", b"{}", b'""',
    b"\n", b"\r\n", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"9" * 5000, b"[" * 3000, b'{"a":' * 2000,
    b"../", b"/", b"\\u0000", b"\\ud800", b"true", b"18446744073709551616",
)  # fmt: skip
_LENGTHS = (0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
_ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**70, -(2**70), 10**300, 1.5, 1e308, float("nan"),
    float("inf"), -float("inf"), "", "x" * 5000, "\ud800", "\x00", "a\nb", "../x", "/etc/passwd",
    [], [[]], {}, {"": 1}, [None], [2**62, 2**62], {"size": [1, 1]},
)  # fmt: skip
_ODD_KEYS = ("", "__class__", "a.b", "\ud800", "0", "../x", "/x")


def change_bytes(rng: random.Random, data: bytes) -> bytes:
    """Returns the bytes after 1 to 8 flips, insertions, cuts, repeats or lengths that lie."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at, kind = rng.randrange(len(changed) + 1), rng.randrange(8)
        if kind == 0 and changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at:at] = rng.choice(_ODD_BYTES)
        elif kind == 2:
            del changed[at : at + rng.choice((1, 2, 8, 64))]
        elif kind == 3:
            changed[at : at + 1] = rng.choice(_ODD_BYTES)
        elif kind == 4:
            del changed[at:]
        elif kind == 5 and changed:
            start = rng.randrange(len(changed))
            changed[at:at] = changed[start : start + rng.choice((4, 32, 200))]
        elif kind == 6 and changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        else:
            width = rng.choice((4, 8))
            changed[at : at + width] = odd_length(rng, width)
    return bytes(changed)


def odd_length(rng: random.Random, width: int) -> bytes:
    """Returns a length that no file has, as little-endian bytes."""
    return (rng.choice(_LENGTHS) % (1 << 8 * width)).to_bytes(width, "little")


def change_value(rng: random.Random, value: Any) -> Any:
    """Returns a JSON value with 1 to 3 of its nodes replaced, left out, renamed or repeated."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        path = rng.choice([*_paths(value)])
        if not path:
            return copy.deepcopy(rng.choice(_ODD_VALUES))
        owner = value
        for key in path[:-1]:
            owner = owner[key]
        kind = rng.random()
        if kind < 0.15:
            del owner[path[-1]]
        elif kind < 0.25 and isinstance(owner, dict):
            owner[rng.choice(_ODD_KEYS)] = owner.pop(path[-1])
        elif kind < 0.35 and isinstance(owner, list):
            owner.append(copy.deepcopy(owner[path[-1]]))
        elif kind < 0.5 and isinstance(owner[path[-1]], int | float):
            owner[path[-1]] += rng.choice((-1, 1, 0.5, 1000))
        else:
            owner[path[-1]] = copy.deepcopy(rng.choice(_ODD_VALUES))
    return value


def _paths(value: Any, above: tuple = ()) -> Iterator[tuple]:
    yield above
    inner = value.items() if isinstance(value, dict) else ()
    for key, entry in enumerate(value) if isinstance(value, list) else inner:
        yield from _paths(entry, (*above, key))


def change_json(rng: random.Random, data: bytes) -> bytes:
    """Returns a JSON text with other values; one time in three, with other bytes."""
    if rng.random() < 0.33:
        return change_bytes(rng, data)
    return json.dumps(change_value(rng, json.loads(data))).encode()


def change_lines(rng: random.Random, data: bytes) -> bytes:
    """Returns JSON lines, one of which is other JSON, or other bytes."""
    lines = data.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = change_json(rng, lines[at])
    return b"\n".join(lines) + b"\n" * rng.randrange(2)


def change_csv(rng: random.Random, data: bytes) -> bytes:
    """Returns a table with other cells, or other bytes."""
    if rng.random() < 0.4:
        return change_bytes(rng, data)
    lines = [line.split(b",") for line in data.splitlines()]
    cells = rng.choice(lines)
    cells[rng.randrange(len(cells))] = rng.choice((*_ODD_BYTES, b'"', b"=1+1", b" "))
    return b"\n".join(map(b",".join, lines))


def change_safetensors(rng: random.Random, data: bytes) -> bytes:
    """Returns a safetensors file with another header, whose length is right most of the time."""
    if rng.random() < 0.3:
        return change_bytes(rng, data)
    length = int.from_bytes(data[:8], "little")
    header = change_json(rng, data[8 : 8 + length])
    stated = odd_length(rng, 8) if rng.random() < 0.1 else len(header).to_bytes(8, "little")
    return stated + header + data[8 + length :]


def change_npz(rng: random.Random, data: bytes) -> bytes:
    """Returns a zip of arrays with another header in one, under a checksum that is right."""
    if rng.random() < 0.35:
        return change_bytes(rng, data)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        members = old.namelist()
        odd = rng.choice(members)
        for name in members:
            content = old.read(name)
            packing = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
            if name == odd:
                content = _change_npy(rng, content)
                name = rng.choice((name, name, name, "x", "../x.npy", members[0], "a\nb.npy"))
            new.writestr(name, content, packing)
    return out.getvalue()


def _change_npy(rng: random.Random, content: bytes) -> bytes:
    if rng.random() < 0.3:
        return change_bytes(rng, content)
    if rng.random() < 0.01:  # Much more than it says, and almost nothing when packed.
        return content + bytes(400 << 20)
    shape = rng.choice(("()", "(2**40,)", "(-1,)", "(1099511627776,)", "(3, 4)", "(1,)*40", "x"))
    kind = rng.choice(("'<f4'", "'|O'", "'<f8'", "'|V2'", "'|S4096'", "[('a', '<f4')]", "'<M8[s]'"))
    head = f"{{'descr': {kind}, 'fortran_order': {rng.random() < 0.2}, 'shape': {shape}, }}\n"
    length = odd_length(rng, 2) if rng.random() < 0.1 else struct.pack("<H", len(head))
    return b"\x93NUMPY\x01\x00" + length + head.encode() + content[-rng.choice((0, 48, 80)) :]


def change_frames(rng: random.Random, data: bytes) -> bytes:
    """Returns a TFRecord file with other bytes, records within right frames, or false lengths."""
    if rng.random() < 0.4:
        return change_bytes(rng, data)
    records, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        records.append(data[at + 12 : at + 12 + length])
        at += length + 16
    frames = [_frame(record, struct.pack("<Q", len(record))) for record in records]
    odd = rng.randrange(len(records))
    if rng.random() < 0.4:
        frames[odd] = _frame(records[odd], odd_length(rng, 8))
    else:
        record = change_bytes(rng, records[odd])
        frames[odd] = _frame(record, struct.pack("<Q", len(record)))
    return b"".join(frames)


def _frame(data: bytes, length: bytes) -> bytes:
    return length + _masked_crc(length) + data + _masked_crc(data)


def _masked_crc(data: bytes) -> bytes:
    """Returns a checksum as TFRecord has it; see `pipelines.records.tfrecord`."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def change_tar(rng: random.Random, data: bytes) -> bytes:
    """Returns an archive with another header in one member, under a checksum that is right."""
    if rng.random() < 0.4:
        return change_bytes(rng, data)
    changed, at, heads = bytearray(data), 0, list[int]()
    while at + 512 <= len(data) and data[at] != 0:
        heads.append(at)
        size = int(data[at + 124 : at + 135], 8)
        at += 512 + -(-size // 512) * 512
    at = rng.choice(heads)
    begin, end, values = rng.choice(
        (
            (0, 100, (b"../../x.jpg", b"/abs/x.jpg", b"", b"\xff" * 100, b"a" * 100)),
            (124, 136, (b"77777777777", b"00000000000", b"-0000000001", b"\x80" + b"\xff" * 11)),
            (156, 157, (b"1", b"2", b"3", b"5", b"6", b"S", b"x", b"g", b"L", b"K", b"\xff")),
            (157, 257, (b"/etc/passwd", b"../x", b"", b"self")),
            (257, 263, (b"ustar\0", b"ustar ", b"\xff" * 6)),
            (345, 500, (b"../" * 40, b"\xff" * 155)),
        )
    )
    changed[at + begin : at + end] = rng.choice(values).ljust(end - begin, b"\0")[: end - begin]
    changed[at + 148 : at + 156] = b" " * 8
    total = sum(changed[at : at + 512])
    changed[at + 148 : at + 156] = b"%06o\0 " % total
    return bytes(changed)


def change_gzip(inner: Change) -> Change:
    """Returns a change of packed files: of what is in them, or of their own bytes."""

    def change(rng: random.Random, data: bytes) -> bytes:
        if rng.random() < 0.4:
            return change_bytes(rng, data)
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        plain = inner(rng, zlib.decompress(data, 31))
        return packer.compress(plain) + packer.flush()

    return change


def change_zip(rng: random.Random, data: bytes) -> bytes:
    """Returns an archive with other bytes, names, sizes or nesting."""
    if rng.random() < 0.5:
        return change_bytes(rng, data)
    out = io.BytesIO()
    names = ("a.txt", "../a.txt", "/a.txt", "a/", "a/b", "a" * 300, "a\nb")
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in rng.sample(names, rng.randrange(1, 6)):
            content = rng.choice((b"", data, bytes(1 << 20), b"x"))
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def change_parquet(rng: random.Random, data: bytes) -> bytes:
    """Returns a table with other bytes, mostly in its footer, which says where all else is."""
    if rng.random() < 0.4:
        return change_bytes(rng, data)
    (length,) = struct.unpack("<I", data[-8:-4])
    body, footer = data[: -8 - length], change_bytes(rng, data[-8 - length : -8])
    stated = odd_length(rng, 4) if rng.random() < 0.1 else struct.pack("<I", len(footer))
    return body + footer + stated + data[-4:]


def small_tar(members: dict[str, bytes]) -> bytes:
    """Returns an archive of some members."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def small_npz() -> bytes:
    """Returns three small arrays."""
    out = io.BytesIO()
    arrays = {"a": np.ones((3, 4), np.float32), "b": np.zeros(7, np.float16), "c": np.arange(5)}
    np.savez(out, **arrays)  # pyright: ignore[reportArgumentType]
    return out.getvalue()
