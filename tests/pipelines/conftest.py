"""Small encoded media, made on the spot."""

import io
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.reading.item import Item
from pipelines.sources.registry import source_spec


def noise(width: int, height: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture(scope="session")
def encoded():
    """Returns a function: width, height, format -> encoded noise."""

    def make(width: int = 31, height: int = 23, kind: str = "JPEG", seed: int = 0) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(noise(width, height, seed)).save(buffer, kind)
        return buffer.getvalue()

    return make


@pytest.fixture(scope="session")
def write_video():
    """Returns a function: writes a clip whose frame i has grey level 10 + 4 i."""

    def write(path: Path, *, num_frames: int = 30, fps: int = 10, codec: str = "libx264") -> Path:
        import av

        with av.open(str(path), "w") as container:
            stream = container.add_stream(codec, rate=fps)
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            stream.time_base = Fraction(1, fps)
            for i in range(num_frames):
                pixels = np.full((48, 64, 3), 10 + 4 * i, dtype=np.uint8)
                for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                    container.mux(packet)
            for packet in stream.encode():
                container.mux(packet)
        return path

    return write


@pytest.fixture
def read_source():
    """Returns a function: lists a source below a data root, as (items, rejects)."""

    def read(name: str, split: str, data_root: Path, *, path: str | None = None, **options):
        corpus = Corpus(data_root, path or source_spec(name).folder, UnpackedMedia(), **options)
        found = list(source_spec(name).read_splits(corpus, split))
        items = [one for one in found if isinstance(one, Item)]
        return items, [one for one in found if not isinstance(one, Item)]

    return read
