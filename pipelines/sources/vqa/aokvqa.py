"""A-OKVQA: questions about photographs that need knowledge; "da" direct, "mc" multiple choice.

    aokvqa_v1p0_{train,val,test}.json, in aokvqa/

Images of COCO 2017 are in this folder, or in coco/ beside it. The Hub's HuggingFaceM4/A-OKVQA can
be read as well.
"""

from pathlib import Path

from pipelines.benchmarks.prompts import BETWEEN, CHOICES
from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow
from pipelines.sources.benchmark_sources import published_source, table_patterns
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.hub import TablePictures, TableRow, literal_list
from pipelines.sources.reading.item import Item, Listing
from pipelines.sources.reading.layout import (
    choice_under,
    image_folder,
    question_item,
    text_under,
    texts_under,
)
from pipelines.sources.reading.row_files import read_file


def _aokvqa_recipes(lr_pg2: float, epochs: float) -> dict[int, FinetuneRecipe]:
    recipe = FinetuneRecipe(batch_size=128, lr_pg1=5e-6, lr_pg2=lr_pg2, epochs=epochs)
    return {224: recipe, 448: recipe}


AOKVQA_DA = Benchmark(
    name="aokvqa_da",
    config="aokvqa_da",
    prompt="answer en {text}",
    text_len=32,
    antialias="always",
    metric="vqa",
    tune_split="train",
    final_split="train+val",
    eval_split="val",
    rows=(ResultRow(titles=("AOKVQA-DA (val)", "AOKVQA-DA"), split="val", size=1_145),),
    num_train=18_201,
    recipes=_aokvqa_recipes(3e-6, 10),
)

AOKVQA_MC = Benchmark(
    name="aokvqa_mc",
    config="aokvqa_mc",
    prompt=CHOICES,
    text_len=128,
    antialias="always",
    metric="exact_match",
    tune_split="train",
    final_split="train+val",
    eval_split="val",
    rows=(ResultRow(titles=("AOKVQA-MC (val)", "AOKVQA-MC"), split="val", size=1_145),),
    num_train=18_201,
    recipes=_aokvqa_recipes(3e-6, 15),
)


def _read_aokvqa(benchmark: Benchmark):
    def read(corpus: Corpus, split: str, file: Path | list[Path]) -> Listing:
        folder = image_folder(corpus, f"{split}2017", "coco")
        pictures = TablePictures(corpus)

        def item_of_row(row: dict) -> Item:
            if isinstance(row, TableRow):
                if isinstance(text := row.get("direct_answers"), str):
                    row["direct_answers"] = literal_list(text, "direct_answers")
                media = pictures.store(row)
            else:
                media = corpus.media(folder / f"{int(row['image_id']):012d}.jpg")
            # One annotation, two benchmarks: "da" takes the free answers, "mc" the choice.
            choices = texts_under(row, "choices")
            if split == "test":
                answers = []
            elif benchmark is AOKVQA_DA:
                answers = texts_under(row, "direct_answers")
            else:
                answers = [choices[choice_under(row, "correct_choice_idx", choices)]]
            return question_item(
                benchmark,
                split,
                media,
                row["question_id"],
                text_under(row, "question"),
                answers,
                meta={"question_id": row["question_id"]},
                choices=BETWEEN.join(choices),
            )

        yield from read_file(corpus, file, f"{benchmark.name}/{split}", item_of_row)

    return read


SOURCES = tuple(
    published_source(
        benchmark,
        splits=("train", "val", "test"),
        folder="aokvqa",
        files=lambda split: ((f"aokvqa_v1p0_{split}.json",),),
        read=_read_aokvqa(benchmark),
        publisher="allenai.org/project/a-okvqa",
        tables={
            "train": table_patterns("train"),
            "val": table_patterns("validation", "val", "val2014"),
            "test": table_patterns("test"),
        },
    )
    for benchmark in (AOKVQA_DA, AOKVQA_MC)
)
