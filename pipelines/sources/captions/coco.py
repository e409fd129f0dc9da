"""Captions of photographs: COCO in Karpathy's splits, and NoCaps.

cococap  dataset_coco.json              images[]: cocoid, filepath, filename, split, sentences[]
         {train2014,val2014}/           in this folder, or in coco/ beside it
nocaps   nocaps_val_4500_captions.json  images[]: id, file_name; annotations[]: image_id, caption
         nocaps_test_image_info.json    images[] only
         Images/{validation,test}/

NoCaps can also be read from the Hub's lmms-lab/NoCaps, which lacks the domain. The COCO captions on
the Hub are all of val2014 or of val2017: none has Karpathy's splits.
"""

from collections.abc import Sequence
from pathlib import Path

from pipelines.benchmarks.captions import BENCHMARKS
from pipelines.records.schema import BadInput
from pipelines.sources.corpus import Corpus
from pipelines.sources.hub import Pictures, named, or_tables, read_tables
from pipelines.sources.item import Item
from pipelines.sources.layout import (
    Found,
    grouped,
    image_folder,
    load_list,
    question,
    read_rows,
    text_of,
    texts_of,
)
from pipelines.sources.spec import published

KARPATHY = ("dataset_coco.json", "../coco/dataset_coco.json", "../cococap/dataset_coco.json")


def _read_coco(corpus: Corpus, split: str, file: Path) -> Found:
    folders = {name: image_folder(corpus, name, "coco") for name in ("train2014", "val2014")}

    def make(row: dict) -> Item | None:
        if row["split"] != split:
            return None
        captions = [said for sentence in row["sentences"] if (said := sentence["raw"]).strip()]
        if not captions:
            raise BadInput(f"image {row['cocoid']} has no caption")
        media = corpus.media(folders[row["filepath"]] / row["filename"])
        key = int(row["cocoid"])
        return question(
            BENCHMARKS["cococap"], split, media, key, "", captions, meta={"image_id": key}
        )

    rows = load_list(corpus, file, "images")
    yield from read_rows(corpus, file, f"cococap/{split}", rows, make)


def _read_nocaps(corpus: Corpus, split: str, file: Path) -> Found:
    folder = image_folder(corpus, "Images/" + {"val": "validation"}.get(split, split), "openimages")
    listed = load_list(corpus, file, "annotations") if split == "val" else []
    captions = {group[0].get("image_id"): group for group in grouped(listed, "image_id")}

    def make(row: dict) -> Item:
        said = [text_of(one, "caption") for one in captions.get(row["id"], ())]
        if split == "val" and not said:
            raise BadInput(f"image {row['id']} has no caption")
        return question(
            BENCHMARKS["nocaps"],
            split,
            corpus.media(folder / row["file_name"]),
            row["id"],
            "",
            said,
            meta={"image_id": row["id"], "domain": row.get("domain", "")},
        )

    rows = load_list(corpus, file, "images")
    yield from read_rows(corpus, file, f"nocaps/{split}", rows, make)


def _read_nocaps_tables(corpus: Corpus, split: str, tables: Sequence[Path]) -> Found:
    pictures = Pictures(corpus)

    def make(table: Path, row: dict) -> Item:
        said = texts_of(row, "annotations_captions") if split == "val" else []
        media = pictures.keep(table, row["image"], text_of(row, "image_file_name"))
        key, meta = row["image_id"], {"image_id": row["image_id"], "domain": row.get("domain", "")}
        return question(BENCHMARKS["nocaps"], split, media, key, "", said, meta=meta)

    yield from read_tables(corpus, f"nocaps/{split}", tables, make)


def _nocaps_files(split: str) -> tuple[tuple[str, ...], ...]:
    val, test = "nocaps_val_4500_captions.json", "nocaps_test_image_info.json"
    return ((val if split == "val" else test,),)


SOURCES = (
    published(
        BENCHMARKS["cococap"],
        splits=("train", "restval", "val", "test"),
        files=lambda split: (KARPATHY,),
        read=_read_coco,
        publisher="cs.stanford.edu/people/karpathy/deepimagesent (caption_datasets.zip)",
    ),
    or_tables(
        published(
            BENCHMARKS["nocaps"],
            splits=("val", "test"),
            files=_nocaps_files,
            read=_read_nocaps,
            publisher="nocaps.org/download",
        ),
        {"val": named("validation"), "test": named("test")},
        _read_nocaps_tables,
    ),
)
