"""Files made to break a reader: whole ones of every kind, changed in one way at a time."""

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 67, 53
"""Of every picture: primes, so that a header shows where they stand [pixels]."""

Mutation = Callable[[bytes, bytes, np.random.Generator], bytes]
"""A file, another one to take from, and what decides."""


def truncate(data: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    """Returns the beginning."""
    return data[: int(rng.integers(1, len(data)))]


def flip(data: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    """Returns it with 1 to 40 bits changed."""
    changed = bytearray(data)
    for position in rng.integers(0, len(data), int(rng.integers(1, 41))):
        changed[position] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def flip_header(data: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    """Returns it with 1 to 4 of the first 64 bytes replaced."""
    changed = bytearray(data)
    for position in rng.integers(0, min(64, len(data)), int(rng.integers(1, 5))):
        changed[position] = int(rng.integers(256))
    return bytes(changed)


def zero(data: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    """Returns it with a stretch of zeros."""
    start, end = sorted(int(v) for v in rng.integers(0, len(data) + 1, 2))
    return data[:start] + bytes(end - start) + data[end:]


def splice(data: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    """Returns the beginning of another kind of file, and its own rest."""
    cut = int(rng.integers(4, 65))
    return other[:cut] + data[cut:]


def cut_out(data: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    """Returns it without a stretch of up to 200 bytes."""
    start = int(rng.integers(0, len(data)))
    return data[:start] + data[start + int(rng.integers(1, 201)) :]


def repeat(data: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    """Returns it with a stretch written again in its middle, up to fifty times."""
    start, end = sorted(int(v) for v in rng.integers(0, len(data) + 1, 2))
    return data[:end] + data[start : min(end, start + 500)] * int(rng.integers(1, 51)) + data[end:]


def inflate(data: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    """Returns it with another width or height declared, wherever its header has the old one."""
    side = int(rng.integers(2))
    new = int(rng.choice([0, 1, 3000, 20_000, 65_535, 2**31 - 1]))
    head, rest = data[:1500], data[1500:]
    for form in (">I", "<I", ">H", "<H"):
        most = 2 ** (8 * struct.calcsize(form)) - 1
        for old in (side_of[side] for side_of in ((WIDTH, HEIGHT), (WIDTH - 1, HEIGHT - 1))):
            head = head.replace(struct.pack(form, old), struct.pack(form, min(new, most)))
    return head + rest


def other_kind(data: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    """Returns another file whole: under this one's name, its extension is wrong."""
    return other


def nothing(data: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    """Returns nothing, zeros, or bytes that mean nothing."""
    size = int(rng.integers(1, 2000))
    return (b"", bytes(size), rng.bytes(size))[int(rng.integers(3))]


MUTATIONS: tuple[Mutation, ...] = (
    truncate, flip, flip_header, zero, splice, cut_out, repeat, inflate, other_kind, nothing,
)  # fmt: skip


def mutants(
    seeds: Sequence[bytes], others: Sequence[bytes], num: int, seed: int
) -> Iterator[tuple[str, bytes]]:
    """Yields the name of a mutation and the file it makes, always the same ones."""
    for number in range(num):
        rng = np.random.default_rng((seed, number))
        mutate = MUTATIONS[number % len(MUTATIONS)]
        data, other = seeds[int(rng.integers(len(seeds)))], others[int(rng.integers(len(others)))]
        yield mutate.__name__, mutate(data, other, rng)


def picture(number: int = 0) -> Image.Image:
    """Returns a small picture with some texture."""
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 11, 3), dtype=np.uint8))
    return coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)


def images() -> dict[str, list[bytes]]:
    """Returns whole images by extension, in the variants Pillow writes."""
    rgb, more = picture(), {"save_all": True, "append_images": [picture(1)]}
    exif = Image.Exif()
    exif[274] = 6
    variants: dict[str, list[tuple[str, dict]]] = {
        "jpg": [("RGB", {}), ("RGB", {"progressive": True, "exif": exif}), ("L", {}), ("CMYK", {})],
        "png": [("RGB", {}), ("P", {}), ("RGBA", {}), ("I;16", {}), ("1", {}), ("RGB", more)],
        "webp": [("RGB", {}), ("RGBA", {"lossless": True}), ("RGB", more)],
        "gif": [("P", {}), ("RGB", more), ("L", {"interlace": 1})],
        "bmp": [("RGB", {}), ("P", {}), ("1", {})],
        "tiff": [("RGB", {})]
        + [("RGB", {"compression": c}) for c in ("tiff_lzw", "jpeg", "tiff_adobe_deflate")]
        + [("1", {"compression": "group4"}), ("I;16", {}), ("RGB", more)],
    }
    made: dict[str, list[bytes]] = {}
    for extension, forms in variants.items():
        for mode, options in forms:
            buffer, kind = io.BytesIO(), "JPEG" if extension == "jpg" else extension.upper()
            image = rgb.convert("I").convert(mode) if mode == "I;16" else rgb.convert(mode)
            image.save(buffer, kind, **options)
            made.setdefault(extension, []).append(buffer.getvalue())
    return made


def videos() -> dict[str, list[bytes]]:
    """Returns whole clips of twelve frames by extension."""
    codecs = {
        "mp4": ("libx264", "mpeg4"),
        "webm": ("libvpx", "libvpx-vp9"),
        "avi": ("mpeg4", "mjpeg"),
    }
    return {
        extension: [_clip(extension, codec) for codec in named]
        for extension, named in codecs.items()
    }


def _clip(extension: str, codec: str) -> bytes:
    import av
    from av.video.stream import VideoStream

    buffer = io.BytesIO()
    with av.open(buffer, "w", format=extension) as container:
        stream = container.add_stream(codec, rate=10)
        assert isinstance(stream, VideoStream)
        stream.codec_context.thread_count = 1  # The same bytes every time.
        stream.width, stream.height = WIDTH - 1, HEIGHT - 1  # H.264 takes even sides only.
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.time_base = Fraction(1, 10)
        for number in range(12):
            frame = av.VideoFrame.from_image(picture(number))
            container.mux(stream.encode(frame.reformat(WIDTH - 1, HEIGHT - 1)))
        container.mux(stream.encode())
    return buffer.getvalue()


def containers() -> dict[str, list[bytes]]:
    """Returns whole web shards and tables of six pictures, by extension."""
    import pyarrow as pa
    from pyarrow import parquet

    shown = images()
    data = [shown[kind][0] for kind in ("jpg", "png", "webp", "gif", "bmp", "tiff")]
    texts = [f"picture {number}, Übergröße" for number in range(6)]
    rows = [
        {
            "image": "a.jpg",
            "text": t,
            "objects": [{"label": "x", "box": [1, 2, 30, 40]}],
            "qa": [{"question": "how many?", "answer": 2}],
            "width": WIDTH,
            "height": HEIGHT,
        }
        for t in texts
    ]
    tar, table = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for number, image in enumerate(data):
            key = f"{number:09d}"
            for extension, content in (
                ("jpg", image),
                ("json", json.dumps(rows[number]).encode()),
                ("txt", texts[number].encode()),
            ):
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    arrow = pa.table({"image": [{"bytes": d, "path": None} for d in data], "caption": texts})
    parquet.write_table(arrow, table)
    return {
        "tar": [tar.getvalue()],
        "tgz": [gzip.compress(tar.getvalue(), mtime=0)],
        "parquet": [table.getvalue()],
        "jsonl": ["\n".join(json.dumps(row) for row in rows).encode()],
        "tsv": ["\n".join(f"{text}\ta.jpg" for text in texts).encode()],
    }


def write_named(folder: Path) -> None:
    """Writes the picture that tables name."""
    (folder / "a.jpg").write_bytes(images()["jpg"][0])
