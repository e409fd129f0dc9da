"""School science: AI2D's diagrams and ScienceQA's pictures.

    ai2d        [ai2d/]questions/{image}.json    questions{text: answerTexts, abcLabel, ...}
                [ai2d/]annotations/{image}.json  text{id: rectangle, replacementText}
                [ai2d/]images/{image}, ai2d_test_ids.csv
    science_qa  problems.json                    {id: question, choices, answer, hint, image, split}
                {split}/{id}/{image}             problems without an image are left out

If AI2D's answers are letters, these letters are drawn over the diagram's own labels.

The Hub's lmms-lab/ai2d, whose pictures already contain the letters, and lmms-lab/ScienceQA can be
read as well. Their rows have no ids, so row numbers are used.
"""

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pipelines.benchmarks.documents import BENCHMARKS
from pipelines.benchmarks.prompts import BETWEEN
from pipelines.records.hashing import stable_hash
from pipelines.records.schema import BadInput
from pipelines.sources.corpus import Corpus
from pipelines.sources.hub import Pictures, named, or_tables, read_tables
from pipelines.sources.item import Edit, Item, Media
from pipelines.sources.layout import (
    Found,
    index_of,
    load_dict,
    question,
    read_rows,
    text_of,
    texts_of,
)
from pipelines.sources.spec import published

_MAX_ORDERS = 24
"""Most orders of a question's choices that training may draw; four choices have exactly 24."""


def _read_ai2d(corpus: Corpus, split: str, ids: Path) -> Found:
    test = set(ids.read_text(encoding="utf-8").split())
    root = next(
        (p for p in (corpus.folder, corpus.folder / "ai2d") if (p / "questions").is_dir()), None
    )
    if root is None:
        raise FileNotFoundError(f"{corpus.folder / 'questions'} is missing.")

    def rows() -> Iterator[tuple[Path, str, Mapping | None]]:
        for path in sorted((root / "questions").glob("*.json")):
            if (Path(path.stem).stem in test) == (split == "test"):
                try:
                    asked = load_dict(corpus, path, "questions")
                except ValueError as error:
                    yield path, str(error), None
                else:
                    yield from ((path, text, row) for text, row in asked.items())

    def make(entry: tuple[Path, str, Mapping | None]) -> Item:
        path, text, row = entry
        if row is None:
            raise BadInput(text)
        choices = texts_of(row, "answerTexts")
        correct = index_of(row, "correctAnswer", choices)
        edit = _labels(corpus, root / "annotations" / path.name) if row["abcLabel"] else None
        return question(
            BENCHMARKS["ai2d"],
            split,
            corpus.media(root / "images" / path.stem, edit=edit),
            row["questionId"],
            text,
            [choices[correct]],
            meta={"question_id": row["questionId"], "abc_label": bool(row["abcLabel"])},
            choices=BETWEEN.join(choices),
        )

    yield from read_rows(corpus, ids, f"ai2d/{split}", rows(), make)


def _read_ai2d_tables(corpus: Corpus, split: str, tables: Sequence[Path]) -> Found:
    pictures, numbers = Pictures(corpus), itertools.count()

    def make(table: Path, row: dict) -> Item:
        key, choices = next(numbers), texts_of(row, "options")
        correct = index_of({"answer": int(row["answer"])}, "answer", choices)
        return question(
            BENCHMARKS["ai2d"],
            split,
            pictures.keep(table, row["image"]),
            key,
            text_of(row, "question"),
            [choices[correct]],
            meta={"question_id": key},
            choices=BETWEEN.join(choices),
        )

    yield from read_tables(corpus, f"ai2d/{split}", tables, make)


def _labels(corpus: Corpus, path: Path) -> Edit:
    if not path.is_file():
        raise BadInput(f"{corpus.relative(path)} is missing")
    labels = []
    for row in load_dict(corpus, path, "text").values():
        (x0, y0), (x1, y1) = row["rectangle"]
        labels.append((float(x0), float(y0), float(x1), float(y1), str(row["replacementText"])))
    return Edit(labels=tuple(labels))


def _read_science(corpus: Corpus, split: str, file: Path) -> Found:
    inner = corpus.folder / "images" / split
    folder = inner if inner.is_dir() else corpus.folder / split

    def make(entry: tuple[str, dict]) -> Item | None:
        key, row = entry
        if row["split"] != split or not row["image"]:
            return None
        image = corpus.media(folder / str(key) / text_of(row, "image"))
        return _problem(split, key, row, image, f"{key}/{row['image']}")

    rows = load_dict(corpus, file).items()
    yield from read_rows(corpus, file, f"science_qa/{split}", rows, make)


def _read_science_tables(corpus: Corpus, split: str, tables: Sequence[Path]) -> Found:
    pictures, numbers = Pictures(corpus), itertools.count()

    def make(table: Path, row: dict) -> Item | None:
        key = str(next(numbers))
        if row["image"] is None:
            return None
        image = pictures.keep(table, row["image"])
        return _problem(split, key, row, image, f"{key}/{image.member}")

    yield from read_tables(corpus, f"science_qa/{split}", tables, make)


def _problem(split: str, key: str, row: dict, media: Media, image: str) -> Item:
    choices = texts_of(row, "choices")
    correct = index_of(row, "answer", choices)

    def asked(order: tuple[int, ...]) -> Item:
        options = ", ".join(f"({_letter(n)}) {choices[i]}" for n, i in enumerate(order))
        return question(
            BENCHMARKS["science_qa"],
            split,
            media,
            key,
            text_of(row, "question"),
            [f"The answer is {_letter(order.index(correct))}."],
            meta={"question_id": key, "subject": row.get("subject", "")},
            image=image,
            context=row["hint"] or "N/A",
            choices=options,
        )

    item = asked(tuple(range(len(choices))))
    if split == "test":
        return item
    # Training shuffles the choices at every visit; evaluation reads them as published.
    others = [asked(order) for order in _orders(len(choices), item.id)]
    return dataclasses.replace(
        item,
        suffixes=tuple(one.suffixes[0] for one in others),
        prefixes=tuple((one.prefix,) for one in others),
    )


def _orders(count: int, key: str) -> list[tuple[int, ...]]:
    """Returns all orders of `count` things, or `_MAX_ORDERS` random ones, seeded by `key`."""
    if math.factorial(count) <= _MAX_ORDERS:
        return list(itertools.permutations(range(count)))
    rng = random.Random(stable_hash(key))
    found: dict[tuple[int, ...], None] = {}
    while len(found) < _MAX_ORDERS:
        found[tuple(rng.sample(range(count), count))] = None
    return list(found)


def _letter(index: int) -> str:
    return chr(ord("A") + index)


_SCIENCE = ("ScienceQA-IMG", "ScienceQA-FULL", "data", ".")

SOURCES = (
    or_tables(
        published(
            BENCHMARKS["ai2d"],
            splits=("train", "test"),
            files=lambda split: (("ai2d_test_ids.csv", "ai2d/ai2d_test_ids.csv"),),
            read=_read_ai2d,
            publisher="prior.allenai.org/projects/diagrams",
        ),
        {"test": named("test")},
        _read_ai2d_tables,
        apart=False,
    ),
    or_tables(
        published(
            BENCHMARKS["science_qa"],
            splits=("train", "val", "test"),
            files=lambda split: (("problems.json", "data/scienceqa/problems.json"),),
            read=_read_science,
            publisher="scienceqa.github.io",
        ),
        {
            split: named(there, folders=_SCIENCE)
            for split, there in (("train", "train"), ("val", "validation"), ("test", "test"))
        },
        _read_science_tables,
        apart=False,
    ),
)
