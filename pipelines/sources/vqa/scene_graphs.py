"""GQA, and its questions in seven more languages (xGQA).

gqa   {train,val,testdev}_balanced_questions.json    {id: {imageId, question, answer, ...}}
      images/{imageId}.jpg
xgqa  annotations/zero_shot/testdev_balanced_questions_{lang}.json
      {annotations,data}/few_shot/{lang}/{dev,test}.json
      images are GQA's, in this folder or in gqa/; answers are English in every language

GQA can also be read from the Hub's lmms-lab/GQA: {split}_instructions/*.parquet, and the pictures
in {split}_images/*.parquet.

The `lang` of an xGQA record is its question's language, since scores are averaged over languages.
"""

from collections.abc import Sequence
from pathlib import Path

from pipelines.benchmarks.vqa import BENCHMARKS, XGQA_LANGUAGES
from pipelines.records.schema import BadInput
from pipelines.sources.corpus import Corpus
from pipelines.sources.hub import Pictures, find_tables, named, or_tables, read_tables, table_rows
from pipelines.sources.item import Item, Media
from pipelines.sources.layout import (
    Found,
    image_folder,
    load_dict,
    question,
    read_rows,
    text_of,
)
from pipelines.sources.spec import published

LANGUAGES = ("en", *XGQA_LANGUAGES)
_SPLITS = ("train_balanced", "val_balanced", "testdev_balanced")


def _reader(name: str):
    def read(corpus: Corpus, split: str, file: Path) -> Found:
        folder = image_folder(corpus, "images", "gqa")
        lang = split.rpartition("_")[2] if name == "xgqa" else "en"

        def make(entry: tuple[str, dict]) -> Item:
            key, row = entry
            image = text_of(row, "imageId")
            if image != Path(image).name:
                raise BadInput(f"imageId must be a name, got {image!r}")
            answer = text_of(row, "answer")
            media = corpus.media(folder / f"{image}.jpg")
            meta = {"question_id": key}
            return question(
                BENCHMARKS[name],
                split,
                media,
                key,
                text_of(row, "question"),
                [answer],
                lang=lang,
                meta=meta,
            )

        rows = load_dict(corpus, file).items()
        yield from read_rows(corpus, file, f"{name}/{split}", rows, make)

    return read


def _read_gqa_tables(corpus: Corpus, split: str, tables: Sequence[Path]) -> Found:
    pictures, kept = Pictures(corpus), dict[str, Media]()
    for table in find_tables(corpus, named(split.partition("_")[0], folders=[f"{split}_images"])):
        for row in table_rows(corpus, table):
            kept[row["id"]] = pictures.keep(table, row["image"], f"{row['id']}.jpg")

    def make(table: Path, row: dict) -> Item:
        image, key = text_of(row, "imageId"), text_of(row, "id")
        if image not in kept:
            raise BadInput(f"no table of {split}_images has {image}")
        asked, answer = text_of(row, "question"), text_of(row, "answer")
        meta = {"question_id": key}
        return question(BENCHMARKS["gqa"], split, kept[image], key, asked, [answer], meta=meta)

    columns = ("id", "imageId", "question", "answer")
    yield from read_tables(corpus, f"gqa/{split}", tables, make, columns=columns)


def _xgqa_files(split: str) -> tuple[tuple[str, ...], ...]:
    part, _, lang = split.rpartition("_")
    if part:
        name = f"few_shot/{lang}/{part}.json"
    else:
        name = f"zero_shot/testdev_balanced_questions_{lang}.json"
    return ((f"annotations/{name}", f"data/{name}", name),)


SOURCES = (
    or_tables(
        published(
            BENCHMARKS["gqa"],
            splits=_SPLITS,
            files=lambda split: ((f"{split}_questions.json", f"questions/{split}_questions.json"),),
            read=_reader("gqa"),
            publisher="cs.stanford.edu/people/dorarad/gqa/download.html",
        ),
        {
            split: named(split.partition("_")[0], folders=[f"{split}_instructions"])
            for split in _SPLITS
        },
        _read_gqa_tables,
        apart=False,
    ),
    published(
        BENCHMARKS["xgqa"],
        splits=(*LANGUAGES, *(f"{part}_{x}" for part in ("dev", "test") for x in LANGUAGES)),
        files=_xgqa_files,
        read=_reader("xgqa"),
        publisher="github.com/adapter-hub/xGQA",
    ),
)
