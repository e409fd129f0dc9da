"""Questions about photographs, each answered by ten people: VQAv2, OK-VQA, A-OKVQA, VizWiz.

    vqav2     v2_OpenEnded_mscoco_{train2014,val2014,test2015,test-dev2015}_questions.json
              v2_mscoco_{train2014,val2014}_annotations.json
    okvqa     OpenEnded_mscoco_{train,val}2014_questions.json
              mscoco_{train,val}2014_annotations.json
    aokvqa_*  aokvqa_v1p0_{train,val,test}.json, in aokvqa/; "da" direct, "mc" multiple choice
    vizwizvqa annotations/{train,val,test}.json and {split}/*.jpg

Images of COCO 2014, 2015 and 2017 lie here, or in the folder coco/ beside this one.
"""

import re
import sys
from pathlib import Path

from pipelines.benchmarks.prompts import BETWEEN
from pipelines.benchmarks.vqa import BENCHMARKS
from pipelines.records.schema import BadInput
from pipelines.sources.corpus import Corpus
from pipelines.sources.item import Item
from pipelines.sources.layout import (
    Found,
    image_folder,
    index_of,
    indexed,
    load_list,
    question,
    read_rows,
    text_of,
    texts_of,
)
from pipelines.sources.spec import published

_COCO_SPLITS = {
    "train": "train2014",
    "val": "val2014",
    "test": "test2015",
    "test-dev": "test-dev2015",
}
_ANSWERED = ("train", "val")


def _answer_only(row: dict) -> object:
    """Keeps one of ten answers as its text: a tenth of the memory, of millions of them."""
    return sys.intern(row["answer"]) if "answer_id" in row and "answer" in row else row


def _read_coco(name: str):
    def read(corpus: Corpus, split: str, questions: Path, annotations: Path | None = None) -> Found:
        images = _COCO_SPLITS[split].replace("-dev", "")
        folder = image_folder(corpus, images, "coco")
        answered = {}
        if annotations:
            listed = load_list(corpus, annotations, "annotations", compact=_answer_only)
            answered = indexed(annotations, listed, "question_id")

        def make(row: dict) -> Item:
            key = row["question_id"]
            if annotations and key not in answered:
                raise BadInput(f"question {key} has no annotation")
            found = answered.get(key, {})
            answers = texts_of(found, "answers") if found else []
            file = f"COCO_{images}_{int(row['image_id']):012d}.jpg"
            kinds = {k: found[k] for k in ("question_type", "answer_type") if k in found}
            return question(
                BENCHMARKS[name],
                split,
                corpus.media(folder / file),
                key,
                text_of(row, "question"),
                answers,
                meta={"question_id": key, **kinds},
            )

        rows = load_list(corpus, questions, "questions")
        yield from read_rows(corpus, questions, f"{name}/{split}", rows, make)

    return read


def _coco_files(prefix: str):
    def files(split: str) -> tuple[tuple[str, ...], ...]:
        part = _COCO_SPLITS[split]
        questions = (f"{prefix}OpenEnded_mscoco_{part}_questions.json",)
        if split not in _ANSWERED:
            return (questions,)
        return questions, (f"{prefix}mscoco_{part}_annotations.json",)

    return files


def _read_aokvqa(name: str):
    def read(corpus: Corpus, split: str, file: Path) -> Found:
        folder = image_folder(corpus, f"{split}2017", "coco")

        def make(row: dict) -> Item:
            choices = texts_of(row, "choices")
            if split == "test":
                answers = []
            elif name == "aokvqa_da":
                answers = texts_of(row, "direct_answers")
            else:
                answers = [choices[index_of(row, "correct_choice_idx", choices)]]
            return question(
                BENCHMARKS[name],
                split,
                corpus.media(folder / f"{int(row['image_id']):012d}.jpg"),
                row["question_id"],
                text_of(row, "question"),
                answers,
                meta={"question_id": row["question_id"]},
                choices=BETWEEN.join(choices),
            )

        rows = load_list(corpus, file)
        yield from read_rows(corpus, file, f"{name}/{split}", rows, make)

    return read


def _read_vizwiz(corpus: Corpus, split: str, file: Path) -> Found:
    folder = image_folder(corpus, split)

    def make(row: dict) -> Item:
        answers = []
        if split != "test":
            answers = [a["answer"] for a in row["answers"] if a["answer"]]
            if not answers:
                raise BadInput("every answer is empty")
        numbers = re.findall(r"\d+", row["image"])
        key = int(numbers[-1])
        return question(
            BENCHMARKS["vizwizvqa"],
            split,
            corpus.media(folder / row["image"]),
            key,
            text_of(row, "question"),
            answers,
            meta={"question_id": key, "answer_type": row.get("answer_type", "")},
        )

    rows = load_list(corpus, file)
    yield from read_rows(corpus, file, f"vizwizvqa/{split}", rows, make)


SOURCES = (
    *(
        published(
            BENCHMARKS[name],
            splits=("train", "val", "test"),
            folder="aokvqa",
            files=lambda split: ((f"aokvqa_v1p0_{split}.json",),),
            read=_read_aokvqa(name),
            publisher="allenai.org/project/a-okvqa",
        )
        for name in ("aokvqa_da", "aokvqa_mc")
    ),
    published(
        BENCHMARKS["okvqa"],
        splits=("train", "val"),
        files=_coco_files(""),
        read=_read_coco("okvqa"),
        publisher="okvqa.allenai.org/download.html",
    ),
    published(
        BENCHMARKS["vizwizvqa"],
        splits=("train", "val", "test"),
        files=lambda split: ((f"annotations/{split}.json", f"Annotations/{split}.json"),),
        read=_read_vizwiz,
        publisher="vizwiz.org/tasks-and-datasets/vqa",
    ),
    published(
        BENCHMARKS["vqav2"],
        splits=tuple(_COCO_SPLITS),
        files=_coco_files("v2_"),
        read=_read_coco("vqav2"),
        publisher="visualqa.org/download.html",
    ),
)
