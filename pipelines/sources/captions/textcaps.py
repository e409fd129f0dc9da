"""TextCaps: captions of photographs that read the text in them, on TextVQA's images.

TextCaps_0.1_{train,val,test}.json   data[]: image_id, caption_str
{train,test}_images/{image_id}.jpg   val's are in train_images; here, in textvqa/ or textcaps/
"""

from pathlib import Path

from pipelines.benchmarks.captions import BENCHMARKS
from pipelines.sources.corpus import Corpus
from pipelines.sources.item import Item
from pipelines.sources.layout import (
    Found,
    grouped,
    load_list,
    question,
    read_rows,
    scene_text_folder,
    text_of,
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


SOURCES = (
    published(
        BENCHMARKS["textcaps"],
        splits=SPLITS,
        files=lambda split: ((f"TextCaps_0.1_{split}.json",),),
        read=_read,
        publisher="textvqa.org/textcaps/dataset",
    ),
)
