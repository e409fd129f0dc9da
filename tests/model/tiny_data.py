"""Tiny prepared datasets and tokenizers, written with the project's own record writer."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from model.text.tokenizer import train_tokenizer
from pipelines.records.dataset import DatasetInfo, PartInfo
from pipelines.records.example import encode_example
from pipelines.records.rle import encode_mask
from pipelines.records.schema import Record
from pipelines.records.tfrecord import write_shard

COLORS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 40, 220)}


def color_record(number: int, *, px: int = 32, images: int = 1, part: str = "color") -> Record:
    """A picture of one colour, and the question which."""
    name = list(COLORS)[number % 3]
    return Record(
        id=f"{part}/{number:03d}",
        images=tuple(_png(np.full((px, px, 3), COLORS[name], np.uint8)) for _ in range(images)),
        prefix="which color?",
        suffixes=(name,),
        answers=(name,),
        task=part,
        source=f"{part}.png",
        source_sha256="0" * 64,
    )


def mask_record(number: int, *, px: int = 32) -> Record:
    """A white rectangle, to be segmented."""
    mask = np.zeros((px, px), bool)
    mask[4 : 12 + number % 5, 8:24] = True
    ys, xs = np.nonzero(mask)
    box = (ys.min() / px, xs.min() / px, (ys.max() + 1) / px, (xs.max() + 1) / px)
    loc = "".join(f"<loc{round(side * 1023):04d}>" for side in box)
    return Record(
        id=f"segment/{number:03d}",
        images=(_png(np.repeat(mask[..., None], 3, axis=2).astype(np.uint8) * 255),),
        prefix="segment it",
        suffixes=(f"{loc}<mask>",),
        masks=(encode_mask(mask),),
        task="segment",
        source="segment.png",
        source_sha256="0" * 64,
    )


def write_dataset(directory: Path, parts: Mapping[str, Sequence[Record]], px: int = 32) -> str:
    """Writes a dataset of one shard per part."""
    directory.mkdir(parents=True)
    infos = {}
    for name, records in parts.items():
        shard = f"{name}-00000-of-00001.tfrecord"
        write_shard(directory / shard, [encode_example(record) for record in records])
        infos[name] = PartInfo(shards=(shard,), num_records=(len(records),))
    total = sum(len(records) for records in parts.values())
    info = DatasetInfo(name="tiny", parts=infos, num_inputs=total, num_rejected=0, image_px=px)
    info.write(directory)
    (directory / "rejects.jsonl").write_text("")
    return str(directory)


def write_tokenizer(path: Path) -> str:
    """Writes a small tokenizer."""
    train_tokenizer(["which color?", "red", "green", "blue", "segment it"] * 9, str(path), 300)
    return str(path)


def _png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format="PNG")
    return out.getvalue()
