"""TextVQA: questions about text in photographs.

    TextVQA_0.5.1_{train,val,test}.json  data[]: question_id, image_id, question, answers
    {train,test}_images/{image_id}.jpg   val's are in train_images; below this folder, textvqa/ or
                                         textcaps/
    {train,test}_images/rotation.csv     OpenImages' ImageID, Rotation [degrees]; optional

The images are turned upright by Rotation, as in big_vision; TextCaps does not turn the same images.

The Hub's lmms-lab/textvqa can be read as well; rotation.csv is then expected at the same place.
"""

import math
from pathlib import Path

from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow
from pipelines.sources.benchmark_sources import published_source, table_patterns
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.hub import TablePictures, TableRow
from pipelines.sources.reading.item import Edit, Item, Listing
from pipelines.sources.reading.layout import (
    question_item,
    scene_text_folder,
    text_under,
    texts_under,
)
from pipelines.sources.reading.row_files import csv_rows, read_file

TEXTVQA = Benchmark(
    name="textvqa",
    config="textvqa",
    prompt="answer en {text}",
    text_len=32,
    antialias="always",
    metric="vqav2",
    tune_split="train",
    final_split="train+val",
    eval_split="val",
    rows=(ResultRow(titles=("TextVQA (val)", "TextVQA"), split="val", suite="main", size=5_000),),
    num_train=39_602,
    recipes={
        224: FinetuneRecipe(lr_pg1=3e-6, lr_pg2=3e-6, epochs=5),
        448: FinetuneRecipe(lr_pg1=3e-6, lr_pg2=3e-6, decay=True, epochs=10),
    },
)

SPLITS = ("train", "val", "test")


def _read_textvqa(corpus: Corpus, split: str, file: Path | list[Path]) -> Listing:
    folder, pictures = scene_text_folder(corpus, split), TablePictures(corpus)
    # Pictures that stand upright are not in the dict.
    turns = _read_quarter_turns(corpus, folder / "rotation.csv")

    def item_of_row(row: dict) -> Item:
        in_table = isinstance(row, TableRow)
        image = text_under(row, "image_id") if in_table else str(row["image_id"])
        # Without a turn there is no edit: edited pictures get no augmentation.
        edit = Edit(quarter_turns=turns[image]) if turns.get(image) else None
        if in_table:
            media = pictures.store(row, f"{image}.jpg", edit=edit)
        else:
            media = corpus.media(folder / f"{image}.jpg", edit=edit)
        return question_item(
            TEXTVQA,
            split,
            media,
            row["question_id"],
            text_under(row, "question"),
            [] if split == "test" else texts_under(row, "answers"),
            meta={"question_id": row["question_id"]},
        )

    yield from read_file(corpus, file, f"textvqa/{split}", item_of_row, key="data")


def _read_quarter_turns(corpus: Corpus, path: Path) -> dict[str, int]:
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
    published_source(
        TEXTVQA,
        splits=SPLITS,
        files=lambda split: ((f"TextVQA_0.5.1_{split}.json",),),
        read=_read_textvqa,
        publisher="textvqa.org/dataset",
        tables={
            "train": table_patterns("train"),
            "val": table_patterns("validation"),
            "test": table_patterns("test"),
        },
        per_table=False,
    ),
)
