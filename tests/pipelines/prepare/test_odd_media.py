"""Pictures and clips with changed bytes: each becomes a record or a reject, once, and soon."""

import io
import random
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.stream import VideoStream
from PIL import Image

from pipelines.records.dataset import Dataset
from tests.fuzz.changes import change_bytes

WIDTH, HEIGHT = 66, 52
TIMEOUT_S = 300
"""Preparing all changed files of one source takes a fraction of it; a clip has ten [s]."""


def picture(number: int = 0) -> Image.Image:
    coarse = np.random.default_rng(number).integers(0, 256, (9, 11, 3), np.uint8)
    return Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)


def pictures() -> list[tuple[str, bytes]]:
    """Returns extension and bytes of whole images, in the variants that Pillow writes."""
    rgb, more = picture(), {"save_all": True, "append_images": [picture(1)]}
    exif = Image.Exif()
    exif[274] = 6
    variants: dict[str, list[tuple[str, dict]]] = {
        "jpeg": [
            ("RGB", {}),
            ("RGB", {"progressive": True, "exif": exif}),
            ("L", {}),
            ("CMYK", {}),
        ],
        "png": [("RGB", {}), ("P", {}), ("RGBA", {}), ("I;16", {}), ("1", {}), ("RGB", more)],
        "webp": [("RGB", {}), ("RGBA", {"lossless": True}), ("RGB", more)],
        "gif": [("P", {}), ("RGB", more), ("L", {"interlace": 1})],
        "bmp": [("RGB", {}), ("P", {}), ("1", {})],
        "tiff": [("RGB", {})]
        + [("RGB", {"compression": c}) for c in ("tiff_lzw", "jpeg", "tiff_adobe_deflate")]
        + [("1", {"compression": "group4"}), ("I;16", {}), ("RGB", more)],
    }
    made = []
    for kind, forms in variants.items():
        for mode, options in forms:
            image = rgb.convert("I").convert(mode) if mode == "I;16" else rgb.convert(mode)
            buffer = io.BytesIO()
            image.save(buffer, kind, **options)
            made.append((kind, buffer.getvalue()))
    return made


def clips() -> list[tuple[str, bytes]]:
    """Returns extension and bytes of whole clips of twelve frames."""
    codecs = {"mp4": ("libx264", "mpeg4"), "webm": ("libvpx", "libvpx-vp9"), "avi": ("mpeg4",)}
    return [(form, _clip(form, codec)) for form, named in codecs.items() for codec in named]


def _clip(form: str, codec: str) -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=form) as container:
        stream = container.add_stream(codec, rate=10)
        assert isinstance(stream, VideoStream)
        stream.codec_context.thread_count = 1  # The same bytes every time.
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.time_base = Fraction(1, 10)
        for number in range(12):
            container.mux(stream.encode(av.VideoFrame.from_image(picture(number))))
        container.mux(stream.encode())
    return buffer.getvalue()


@pytest.mark.deep
@pytest.mark.parametrize(("source", "num"), [("images", 300), ("videos", 30)])
def test_every_changed_file_is_a_record_or_a_reject(source: str, num: int, tmp_path: Path):
    whole = pictures() if source == "images" else clips()
    (tmp_path / source).mkdir()
    names = set()
    for number in range(num):
        form, data = whole[number % len(whole)]
        names.add(name := f"m-{number:05d}.{form}")
        changed = change_bytes(random.Random(f"1 {number}"), data)
        # An unchanged one of each form says that those are read.
        (tmp_path / source / name).write_bytes(data if number < len(whole) else changed)
    words = [source, "train", "--data-root", str(tmp_path), "--out", str(tmp_path / "out")]
    words += ["--image-px", "32", "--max-reject-rate", "1", "--num-frames", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.prepare", *words, "--clip-cpu-s", "10"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    dataset = Dataset(tmp_path / "out")
    records = [record.id.rpartition("/")[2] for record in dataset.records()]
    rejects = [reject.id.rpartition("/")[2] for reject in dataset.rejects()]
    assert sorted(records + rejects) == sorted(names)
    assert {f"m-{number:05d}.{form}" for number, (form, _) in enumerate(whole)} <= {*records}
    assert len(rejects) > num / 4
