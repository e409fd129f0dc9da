"""Questions about photographs, each answered by ten people: VQAv2, OK-VQA, A-OKVQA, VizWiz.

    vqav2     v2_OpenEnded_mscoco_{train2014,val2014,test2015,test-dev2015}_questions.json
              v2_mscoco_{train2014,val2014}_annotations.json
    okvqa     OpenEnded_mscoco_{train,val}2014_questions.json
              mscoco_{train,val}2014_annotations.json
    aokvqa_*  aokvqa_v1p0_{train,val,test}.json, in aokvqa/; "da" direct, "mc" multiple choice
    vizwizvqa annotations/{train,val,test}.json and {split}/*.jpg

Images of COCO 2014, 2015 and 2017 are in this folder, or in coco/ beside it.

The Hub's tables can be read as well: lmms-lab/VQAv2; lmms-lab/OK-VQA, which has no names of
pictures, but whose question ids are the picture's number and one digit; HuggingFaceM4/A-OKVQA;
lmms-lab/VizWiz-VQA, whose question_id is the picture's name.
"""

import ast
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipelines.benchmarks.prompts import BETWEEN
from pipelines.benchmarks.vqa import BENCHMARKS
from pipelines.records.schema import BadInput
from pipelines.sources.corpus import Corpus
from pipelines.sources.hub import Pictures, named, or_tables, read_tables, texts
from pipelines.sources.item import Item, Media
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
    """Replaces an answer's object by its text, a tenth of the memory; keeps every other object."""
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
            media = corpus.media(folder / _coco_file(images, row["image_id"]))
            return _coco_question(name, split, media, key, row, found, answers)

        rows = load_list(corpus, questions, "questions")
        yield from read_rows(corpus, questions, f"{name}/{split}", rows, make)

    return read


def _coco_file(folder: str, number: object) -> str:
    return f"COCO_{folder}_{int(number):012d}.jpg"  # type: ignore[call-overload]


def _coco_question(
    name: str,
    split: str,
    media: Media,
    key: int,
    row: Mapping,
    kinds: Mapping,
    answers: Sequence[str],
) -> Item:
    known = {k: kinds[k] for k in ("question_type", "answer_type") if kinds.get(k)}
    asked, meta = text_of(row, "question"), {"question_id": key, **known}
    return question(BENCHMARKS[name], split, media, key, asked, answers, meta=meta)


def _read_coco_tables(name: str):
    def read(corpus: Corpus, split: str, tables: Sequence[Path]) -> Found:
        images, pictures = _COCO_SPLITS[split].replace("-dev", ""), Pictures(corpus)

        def make(table: Path, row: dict) -> Item:
            key = int(row["question_id"])
            # The id of an OK-VQA question is its picture's number and one more digit.
            number = row["image_id"] if "image_id" in row else key // 10
            answers = []
            if split in _ANSWERED:
                answers = texts_of({"answers": texts(row["answers"])}, "answers")
            media = pictures.keep(table, row["image"], _coco_file(images, number))
            return _coco_question(name, split, media, key, row, row, answers)

        yield from read_tables(corpus, f"{name}/{split}", tables, make)

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
            media = corpus.media(folder / f"{int(row['image_id']):012d}.jpg")
            return _aokvqa_question(name, split, media, row)

        rows = load_list(corpus, file)
        yield from read_rows(corpus, file, f"{name}/{split}", rows, make)

    return read


def _read_aokvqa_tables(name: str):
    def read(corpus: Corpus, split: str, tables: Sequence[Path]) -> Found:
        pictures = Pictures(corpus)

        def make(table: Path, row: dict) -> Item:
            direct = row.get("direct_answers")
            if isinstance(direct, str):  # The table stores the list as a Python literal.
                try:
                    row["direct_answers"] = ast.literal_eval(direct)
                except (ValueError, SyntaxError):
                    raise BadInput(f"direct_answers must be a list, got {direct!r:.80}") from None
            return _aokvqa_question(name, split, pictures.keep(table, row["image"]), row)

        yield from read_tables(corpus, f"{name}/{split}", tables, make)

    return read


def _aokvqa_question(name: str, split: str, media: Media, row: dict) -> Item:
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
        media,
        row["question_id"],
        text_of(row, "question"),
        answers,
        meta={"question_id": row["question_id"]},
        choices=BETWEEN.join(choices),
    )


def _read_vizwiz(corpus: Corpus, split: str, file: Path) -> Found:
    folder = image_folder(corpus, split)

    def make(row: dict) -> Item:
        media = corpus.media(folder / row["image"])
        return _vizwiz_question(split, media, row, row.get("answer_type", ""))

    rows = load_list(corpus, file)
    yield from read_rows(corpus, file, f"vizwizvqa/{split}", rows, make)


def _read_vizwiz_tables(corpus: Corpus, split: str, tables: Sequence[Path]) -> Found:
    pictures = Pictures(corpus)

    def make(table: Path, row: dict) -> Item:
        media = pictures.keep(table, row["image"], f"{text_of(row, 'question_id')}.jpg")
        return _vizwiz_question(split, media, row, row.get("category") or "")

    yield from read_tables(corpus, f"vizwizvqa/{split}", tables, make)


def _vizwiz_question(split: str, media: Media, row: dict, answer_type: str) -> Item:
    answers = []
    if split != "test":
        answers = [str(answer) for answer in texts(row["answers"]) if answer]
        if not answers:
            raise BadInput("every answer is empty")
    key = int(re.findall(r"\d+", Path(media.member or media.path).name)[-1])
    return question(
        BENCHMARKS["vizwizvqa"],
        split,
        media,
        key,
        text_of(row, "question"),
        answers,
        meta={"question_id": key, "answer_type": answer_type},
    )


_TABLES = {
    "train": named("train"),
    "val": named("validation", "val", "val2014"),
    "test": named("test"),
    "test-dev": named("testdev"),
}

SOURCES = (
    *(
        or_tables(
            published(
                BENCHMARKS[name],
                splits=("train", "val", "test"),
                folder="aokvqa",
                files=lambda split: ((f"aokvqa_v1p0_{split}.json",),),
                read=_read_aokvqa(name),
                publisher="allenai.org/project/a-okvqa",
            ),
            _TABLES,
            _read_aokvqa_tables(name),
        )
        for name in ("aokvqa_da", "aokvqa_mc")
    ),
    or_tables(
        published(
            BENCHMARKS["okvqa"],
            splits=("train", "val"),
            files=_coco_files(""),
            read=_read_coco("okvqa"),
            publisher="okvqa.allenai.org/download.html",
        ),
        _TABLES,
        _read_coco_tables("okvqa"),
    ),
    or_tables(
        published(
            BENCHMARKS["vizwizvqa"],
            splits=("train", "val", "test"),
            files=lambda split: ((f"annotations/{split}.json", f"Annotations/{split}.json"),),
            read=_read_vizwiz,
            publisher="vizwiz.org/tasks-and-datasets/vqa",
        ),
        _TABLES,
        _read_vizwiz_tables,
    ),
    or_tables(
        published(
            BENCHMARKS["vqav2"],
            splits=tuple(_COCO_SPLITS),
            files=_coco_files("v2_"),
            read=_read_coco("vqav2"),
            publisher="visualqa.org/download.html",
        ),
        _TABLES,
        _read_coco_tables("vqav2"),
    ),
)
