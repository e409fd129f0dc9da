"""Drawn pictures that differ, and datasets made of them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from perf.hygiene import stored
from pipelines.records import example
from pipelines.records.dataset import DatasetInfo, PartInfo
from pipelines.records.rewrite import write_json_lines
from pipelines.records.schema import Record, Reject
from pipelines.records.tfrecord import write_shard


def draw(seed: int, side: int = 300) -> Image.Image:
    """Returns a picture of 25 shapes, anywhere, of any colour."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (side, side), tuple(rng.integers(0, 256, 3).tolist()))
    pen = ImageDraw.Draw(image)
    for _ in range(25):
        x, y = rng.integers(0, side, 2)
        w, h = rng.integers(side // 20, side // 3, 2)
        shape = (pen.ellipse, pen.rectangle)[rng.integers(2)]
        shape((x, y, x + w, y + h), fill=tuple(rng.integers(0, 256, 3).tolist()))
    return image


@pytest.fixture(scope="session")
def drawn():
    return draw


@pytest.fixture
def write_dataset(tmp_path):
    """Returns a function: id -> (source, images) becomes a dataset; returns its folder."""

    def write(name: str, rows: dict[str, tuple[str, list[Image.Image]]], rejects: int = 0) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        records = [
            Record(
                id=identity,
                images=tuple(stored(image) for image in images),
                prefix="caption en",
                suffixes=("x",),
                task="caption",
                source=source,
                source_sha256=source.partition("@")[2] or f"sha of {source}",
            )
            for identity, (source, images) in sorted(rows.items())
        ]
        half = len(records) // 2
        shards = ("caption-0.tfrecord", "caption-1.tfrecord")
        counts = tuple(
            write_shard(folder / shard, map(example.encode_example, part))
            for shard, part in zip(shards, (records[:half], records[half:]), strict=True)
        )
        lost = [
            Reject(id=f"lost{i}", stage="decode", reason="bad", source="x") for i in range(rejects)
        ]
        write_json_lines(folder / "rejects.jsonl", (vars(r) for r in lost))
        DatasetInfo(
            name=name,
            parts={"caption": PartInfo(shards=shards, num_records=counts)},
            num_inputs=len(records) + rejects,
            num_rejected=rejects,
            image_px=224,
        ).write(folder)
        return folder

    return write
