"""TextVQA: questions about text in photographs.

    TextVQA_0.5.1_{train,val,test}.json  data[]: question_id, image_id, question, answers
    {train,test}_images/{image_id}.jpg   val's are in train_images; below this folder, textvqa/ or
                                         textcaps/
    {train,test}_images/rotation.csv     OpenImages' ImageID, Rotation [degrees]; optional

The images are turned upright by Rotation, as in big_vision; TextCaps does not turn the same images.

The Hub's lmms-lab/textvqa can be read as well; rotation.csv is then expected at the same place.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipelines.benchmarks.documents import BENCHMARKS
from pipelines.sources.corpus import Corpus
from pipelines.sources.hub import Pictures, named, or_tables, read_tables
from pipelines.sources.item import Edit, Item, Media
from pipelines.sources.layout import (
    Found,
    csv_rows,
    load_list,
    question,
    read_rows,
    scene_text_folder,
    text_of,
    texts_of,
)
from pipelines.sources.spec import published

SPLITS = ("train", "val", "test")


def _read_questions(corpus: Corpus, split: str, file: Path) -> Found:
    folder = scene_text_folder(corpus, split)
    turns = _turns(corpus, folder / "rotation.csv")

    def make(row: dict) -> Item:
        image = str(row["image_id"])
        return _item(split, corpus.media(folder / f"{image}.jpg", edit=_edit(turns, image)), row)

    rows = load_list(corpus, file, "data")
    yield from read_rows(corpus, file, f"textvqa/{split}", rows, make)


def _read_tables(corpus: Corpus, split: str, tables: Sequence[Path]) -> Found:
    turns = _turns(corpus, scene_text_folder(corpus, split) / "rotation.csv")
    pictures = Pictures(corpus)

    def make(table: Path, row: dict) -> Item:
        image = text_of(row, "image_id")
        edit = _edit(turns, image)
        return _item(split, pictures.keep(table, row["image"], f"{image}.jpg", edit=edit), row)

    yield from read_tables(corpus, f"textvqa/{split}", tables, make)


def _item(split: str, media: Media, row: dict) -> Item:
    return question(
        BENCHMARKS["textvqa"],
        split,
        media,
        row["question_id"],
        text_of(row, "question"),
        [] if split == "test" else texts_of(row, "answers"),
        meta={"question_id": row["question_id"]},
    )


def _edit(turns: Mapping[str, int], image: str) -> Edit | None:
    return Edit(quarter_turns=turns[image]) if turns.get(image) else None


def _turns(corpus: Corpus, path: Path) -> dict[str, int]:
    """Returns image -> counter-clockwise quarter turns, for the images that need any."""
    if not path.is_file():
        return {}
    turns = {}
    for row in csv_rows(corpus.annotation(path), "ImageID", "Rotation"):
        degrees = float(row["Rotation"] or 0)
        if math.isfinite(degrees) and (quarter := round(degrees / 90) % 4):
            turns[row["ImageID"]] = quarter
    return turns


SOURCES = (
    or_tables(
        published(
            BENCHMARKS["textvqa"],
            splits=SPLITS,
            files=lambda split: ((f"TextVQA_0.5.1_{split}.json",),),
            read=_read_questions,
            publisher="textvqa.org/dataset",
        ),
        {"train": named("train"), "val": named("validation"), "test": named("test")},
        _read_tables,
        apart=False,
    ),
)
