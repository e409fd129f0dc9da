"""GQA, and its questions in seven more languages (xGQA).

gqa   {train,val,testdev}_balanced_questions.json    {id: {imageId, question, answer, ...}}
      images/{imageId}.jpg
xgqa  annotations/zero_shot/testdev_balanced_questions_{lang}.json
      {annotations,data}/few_shot/{lang}/{dev,test}.json
      images are GQA's, here or in the folder gqa/; answers are English in every language

The language of an xGQA record is its question's, since scores are averaged by it.
"""

from pathlib import Path

from pipelines.benchmarks.vqa import BENCHMARKS, XGQA_LANGUAGES
from pipelines.records.schema import BadInput
from pipelines.sources.corpus import Corpus
from pipelines.sources.item import Item
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


def _xgqa_files(split: str) -> tuple[tuple[str, ...], ...]:
    part, _, lang = split.rpartition("_")
    if part:
        name = f"few_shot/{lang}/{part}.json"
    else:
        name = f"zero_shot/testdev_balanced_questions_{lang}.json"
    return ((f"annotations/{name}", f"data/{name}", name),)


SOURCES = (
    published(
        BENCHMARKS["gqa"],
        splits=_SPLITS,
        files=lambda split: ((f"{split}_questions.json", f"questions/{split}_questions.json"),),
        read=_reader("gqa"),
        publisher="cs.stanford.edu/people/dorarad/gqa/download.html",
    ),
    published(
        BENCHMARKS["xgqa"],
        splits=(*LANGUAGES, *(f"{part}_{x}" for part in ("dev", "test") for x in LANGUAGES)),
        files=_xgqa_files,
        read=_reader("xgqa"),
        publisher="github.com/adapter-hub/xGQA",
    ),
)
