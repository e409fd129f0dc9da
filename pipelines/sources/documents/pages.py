"""Pages, posters and signs: DocVQA, InfographicVQA, ST-VQA.

    docvqa   {train,val}_v1.0_withQT.json, test_v1.0.json; {split}/documents/*.png
             data[]: questionId, question, image ("documents/x.png"), answers
    infovqa  infographicsVQA_{train_v1.0,val_v1.0_withQT,test_v1.0}.json; images/
             data[]: questionId, question, image_local_name, answers
    stvqa    {train,test}_task_3.json; train_images/, test_task3_images/
             data[]: question_id, question, file_path ("coco-text/x.jpg"), answers

InfographicVQA: an answer that lists up to six items is accepted in any order of the items.
ST-VQA publishes no validation split. Ours has the images whose path's hash, modulo 26,074, is below
2,628: on average as many questions as the usual, unpublished split has. Its COCO-Text images are
taken from COCO's train2014 in coco/ beside this folder, if that exists, since they are larger.

The Hub's lmms-lab/DocVQA can be read as well, its InfographicVQA also from docvqa/ beside this
folder. It has the names of DocVQA's pages, but not of InfographicVQA's pictures.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path

from pipelines.benchmarks.documents import BENCHMARKS
from pipelines.records.hashing import stable_hash
from pipelines.sources.corpus import Corpus
from pipelines.sources.hub import Pictures, named, or_tables, read_tables
from pipelines.sources.item import Item, Media
from pipelines.sources.layout import (
    Found,
    image_folder,
    load_list,
    question,
    read_rows,
    text_of,
    texts_of,
)
from pipelines.sources.spec import published

SPLITS = ("train", "val", "test")
_MOST_ITEMS = 6
_STVQA_VAL, _STVQA_ALL = 2_628, 26_074


def _read_docvqa(corpus: Corpus, split: str, file: Path) -> Found:
    inner = corpus.folder / split
    folder = inner if inner.is_dir() else corpus.folder

    def make(row: dict) -> Item:
        answers = [] if split == "test" else texts_of(row, "answers")
        key = row["questionId"]
        return question(
            BENCHMARKS["docvqa"],
            split,
            corpus.media(folder / text_of(row, "image")),
            key,
            text_of(row, "question"),
            answers,
            meta={"question_id": key, "question_types": row.get("question_types") or []},
        )

    rows = load_list(corpus, file, "data")
    yield from read_rows(corpus, file, f"docvqa/{split}", rows, make)


def _read_docvqa_tables(corpus: Corpus, split: str, tables: Sequence[Path]) -> Found:
    pictures = Pictures(corpus)

    def make(table: Path, row: dict) -> Item:
        answers = [] if split == "test" else texts_of(row, "answers")
        page = f"{text_of(row, 'ucsf_document_id')}_{row['ucsf_document_page_no']}.png"
        media, key = pictures.keep(table, row["image"], page), int(row["questionId"])
        meta = {"question_id": key, "question_types": row.get("question_types") or []}
        asked = text_of(row, "question")
        return question(BENCHMARKS["docvqa"], split, media, key, asked, answers, meta=meta)

    yield from read_tables(corpus, f"docvqa/{split}", tables, make)


def _read_infovqa(corpus: Corpus, split: str, file: Path) -> Found:
    folder = image_folder(corpus, "images")

    def make(row: dict) -> Item:
        media = corpus.media(folder / text_of(row, "image_local_name"))
        return _infovqa_question(split, media, row["questionId"], row)

    rows = load_list(corpus, file, "data")
    yield from read_rows(corpus, file, f"infovqa/{split}", rows, make)


def _read_infovqa_tables(corpus: Corpus, split: str, tables: Sequence[Path]) -> Found:
    pictures = Pictures(corpus)

    def make(table: Path, row: dict) -> Item:
        return _infovqa_question(
            split, pictures.keep(table, row["image"]), int(row["questionId"]), row
        )

    yield from read_tables(corpus, f"infovqa/{split}", tables, make)


def _infovqa_question(split: str, media: Media, key: int, row: dict) -> Item:
    targets = [] if split == "test" else texts_of(row, "answers")
    return question(
        BENCHMARKS["infovqa"],
        split,
        media,
        key,
        text_of(row, "question"),
        reordered(targets),
        targets=targets,
        meta={"question_id": key},
    )


def reordered(answers: Sequence[str]) -> list[str]:
    """Returns the answers, followed by every other order of the items that an answer lists."""
    found = dict.fromkeys(answers)
    for answer in answers:
        items = answer.split(", ")
        if len(items) <= _MOST_ITEMS:
            found.update(dict.fromkeys(map(", ".join, itertools.permutations(items))))
    return list(found)


def _read_stvqa(corpus: Corpus, split: str, file: Path) -> Found:
    test = split == "test"
    folder = image_folder(corpus, "test_task3_images" if test else "train_images")
    coco = image_folder(corpus, "train2014", "coco")

    def make(row: dict) -> Item | None:
        name = text_of(row, "file_path")
        if not test and in_stvqa_val(name) != (split == "val"):
            return None
        collection, _, base = name.partition("/")
        path = coco / base if collection == "coco-text" and coco.is_dir() else folder / name
        answers = [] if test else texts_of(row, "answers")
        key = row["question_id"]
        return question(
            BENCHMARKS["stvqa"],
            split,
            corpus.media(path),
            key,
            text_of(row, "question"),
            answers,
            image=name,
            meta={"question_id": key},
        )

    rows = load_list(corpus, file, "data")
    yield from read_rows(corpus, file, f"stvqa/{split}", rows, make)


def in_stvqa_val(file_path: str) -> bool:
    """Returns whether a training image belongs to our validation split."""
    return stable_hash(f"stvqa/{file_path}") % _STVQA_ALL < _STVQA_VAL


def _docvqa_files(split: str) -> tuple[tuple[str, ...], ...]:
    names = [f"{split}_v1.0.json"]
    if split != "test":
        names.insert(0, f"{split}_v1.0_withQT.json")
    return (tuple(folder + name for folder in ("", f"{split}/") for name in names),)


_INFOVQA = {"train": "train_v1.0", "val": "val_v1.0_withQT", "test": "test_v1.0"}
_COMPETITION = "rrc.cvc.uab.es"
_ON_THE_HUB = {"train": "train", "val": "validation", "test": "test"}

SOURCES = (
    or_tables(
        published(
            BENCHMARKS["docvqa"],
            splits=SPLITS,
            files=_docvqa_files,
            read=_read_docvqa,
            publisher=f"{_COMPETITION} (challenge 17, task 1)",
        ),
        {split: named(there, folders=["DocVQA"]) for split, there in _ON_THE_HUB.items()},
        _read_docvqa_tables,
    ),
    or_tables(
        published(
            BENCHMARKS["infovqa"],
            splits=SPLITS,
            files=lambda split: (
                (f"infographicsVQA_{_INFOVQA[split]}.json", f"infographicsVQA_{split}_v1.0.json"),
            ),
            read=_read_infovqa,
            publisher=f"{_COMPETITION} (challenge 17, task 3)",
        ),
        {
            split: named(there, folders=["InfographicVQA", "../docvqa/InfographicVQA"])
            for split, there in _ON_THE_HUB.items()
        },
        _read_infovqa_tables,
    ),
    published(
        BENCHMARKS["stvqa"],
        splits=SPLITS,
        files=lambda split: ((f"{'test' if split == 'test' else 'train'}_task_3.json",),),
        read=_read_stvqa,
        publisher=f"{_COMPETITION} (challenge 11, task 3)",
    ),
)
