"""TextCaps: captions that mention the text in photographs, on TextVQA's images.

TextCaps_0.1_{train,val,test}.json   data[]: image_id, caption_str
{train,test}_images/{image_id}.jpg   val's are in train_images; below this folder, textvqa/ or
                                     textcaps/

The Hub's lmms-lab/TextCaps can be read as well.
"""

from collections.abc import Sequence
from pathlib import Path

from pipelines.benchmarks.captions import BENCHMARKS
from pipelines.sources.corpus import Corpus
from pipelines.sources.hub import Pictures, named, or_tables, read_tables
from pipelines.sources.item import Item
from pipelines.sources.layout import (
    Found,
    grouped,
    load_list,
    question,
    read_rows,
    scene_text_folder,
    text_of,
    texts_of,
)
from pipelines.sources.spec import published

SPLITS = ("train", "val", "test")


def _read(corpus: Corpus, split: str, file: Path) -> Found:
    folder = scene_text_folder(corpus, split)

    def make(rows: list[dict]) -> Item:
        image = str(rows[0]["image_id"])
        captions = [] if split == "test" else [text_of(row, "caption_str") for row in rows]
        media = corpus.media(folder / f"{rows[0].get('image_name', image)}.jpg")
        return question(
            BENCHMARKS["textcaps"],
            split,
            media,
            image,
            "",
            captions,
            meta={"image_id": image},
        )

    images = grouped(load_list(corpus, file, "data"), "image_id")
    yield from read_rows(corpus, file, f"textcaps/{split}", images, make)


def _read_tables(corpus: Corpus, split: str, tables: Sequence[Path]) -> Found:
    pictures = Pictures(corpus)

    def make(table: Path, row: dict) -> Item:
        captions = [] if split == "test" else texts_of(row, "caption_str")
        image = text_of(row, "image_id")
        media = pictures.keep(table, row["image"], f"{row.get('image_name') or image}.jpg")
        meta = {"image_id": image}
        return question(BENCHMARKS["textcaps"], split, media, image, "", captions, meta=meta)

    yield from read_tables(corpus, f"textcaps/{split}", tables, make)


SOURCES = (
    or_tables(
        published(
            BENCHMARKS["textcaps"],
            splits=SPLITS,
            files=lambda split: ((f"TextCaps_0.1_{split}.json",),),
            read=_read,
            publisher="textvqa.org/textcaps/dataset",
        ),
        {split: named(split) for split in SPLITS},
        _read_tables,
    ),
)
