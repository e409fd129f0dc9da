"""Text in photographs: TextVQA's questions and TextCaps' captions, on the same images.

    textvqa   TextVQA_0.5.1_{train,val,test}.json  data[]: question_id, image_id, question, answers
    textcaps  TextCaps_0.1_{train,val,test}.json   data[]: image_id, caption_str
              {train,test}_images/{image_id}.jpg   val's are in train_images; here, in textvqa/ or
                                                   in textcaps/
              {train,test}_images/rotation.csv     OpenImages' ImageID, Rotation [degrees]; optional

TextVQA's images are turned upright by Rotation, as big_vision's are; those of TextCaps are not.
"""

import math
from pathlib import Path

from pipelines.sources.item import Corpus, Edit, Item
from pipelines.sources.layout import (
    Found,
    Layout,
    csv_rows,
    grouped,
    image_folder,
    load_list,
    question,
    read_rows,
    text_of,
    texts_of,
)

SPLITS = ("train", "val", "test")


def _folder(corpus: Corpus, split: str) -> Path:
    name = "test_images" if split == "test" else "train_images"
    return image_folder(corpus, name, "textvqa", "textcaps")


def _read_questions(corpus: Corpus, split: str, file: Path) -> Found:
    folder = _folder(corpus, split)
    turns = _turns(corpus, folder / "rotation.csv")

    def make(row: dict) -> Item:
        image = str(row["image_id"])
        edit = Edit(quarter_turns=turns[image]) if turns.get(image) else None
        answers = [] if split == "test" else texts_of(row, "answers")
        return question(
            "textvqa",
            split,
            corpus.media(folder / f"{image}.jpg", edit=edit),
            row["question_id"],
            text_of(row, "question"),
            answers,
            meta={"question_id": row["question_id"]},
        )

    rows = load_list(corpus, file, "data")
    yield from read_rows(corpus, file, f"textvqa/{split}", rows, make)


def _turns(corpus: Corpus, path: Path) -> dict[str, int]:
    """Returns image -> quarter turns counter-clockwise, of those that need any."""
    if not path.is_file():
        return {}
    turns = {}
    for row in csv_rows(corpus.annotation(path), "ImageID", "Rotation"):
        degrees = float(row["Rotation"] or 0)
        if math.isfinite(degrees) and (quarter := round(degrees / 90) % 4):
            turns[row["ImageID"]] = quarter
    return turns


def _read_captions(corpus: Corpus, split: str, file: Path) -> Found:
    folder = _folder(corpus, split)

    def make(rows: list[dict]) -> Item:
        image = str(rows[0]["image_id"])
        captions = [] if split == "test" else [text_of(row, "caption_str") for row in rows]
        media = corpus.media(folder / f"{rows[0].get('image_name', image)}.jpg")
        return question(
            "textcaps",
            split,
            media,
            image,
            "",
            captions,
            meta={"image_id": image},
        )

    images = grouped(load_list(corpus, file, "data"), "image_id")
    yield from read_rows(corpus, file, f"textcaps/{split}", images, make)


LAYOUTS = (
    Layout(
        name="textcaps",
        splits=SPLITS,
        files=lambda split: ((f"TextCaps_0.1_{split}.json",),),
        read=_read_captions,
        publisher="textvqa.org/textcaps/dataset",
    ),
    Layout(
        name="textvqa",
        splits=SPLITS,
        files=lambda split: ((f"TextVQA_0.5.1_{split}.json",),),
        read=_read_questions,
        publisher="textvqa.org/dataset",
    ),
)
