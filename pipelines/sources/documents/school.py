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
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipelines.benchmarks.prompts import BETWEEN, CHOICES
from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow
from pipelines.records.hashing import stable_hash
from pipelines.records.schema import BadInput
from pipelines.sources.benchmark_sources import published_source, table_patterns
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.hub import TablePictures, TableRow
from pipelines.sources.reading.item import Edit, Item, Listing
from pipelines.sources.reading.layout import choice_under, question_item, text_under, texts_under
from pipelines.sources.reading.row_files import load_dict, read_file, read_rows
from pipelines.sources.reading.values import text_of

_AI2D_RECIPE = FinetuneRecipe(lr_pg1=1e-5, lr_pg2=6e-6, decay=True, epochs=10)

_SCIENCE_QA_RECIPE = FinetuneRecipe(
    batch_size=128, lr_pg1=1e-5, lr_pg2=6e-6, epochs=20, freeze_vision="all"
)

AI2D = Benchmark(
    name="ai2d",
    config="ai2d",
    prompt=CHOICES,
    text_len=128,
    antialias="train",
    metric="exact_match",
    tune_split="train[:-1024]",
    final_split="train",
    eval_split="test",
    rows=(ResultRow(titles=("AI2D",), split="test", size=3_088),),
    num_train=12_413,
    recipes={224: _AI2D_RECIPE, 448: _AI2D_RECIPE},
)

SCIENCE_QA = Benchmark(
    name="science_qa",
    config="science_qa",
    prompt="Question: {text}\nContext: {context}\nOptions: {choices}\nAnswer:",
    text_len=512,
    metric="science_qa",
    tune_split="train",
    final_split="train+val",
    eval_split="test",
    rows=(ResultRow(titles=("ScienceQA",), split="test", size=2_017),),
    num_train=8_315,
    recipes={224: _SCIENCE_QA_RECIPE, 448: _SCIENCE_QA_RECIPE},
)

_MAX_ORDERS = 24
"""Most orders of a question's choices that training may draw; four choices have exactly 24."""


def _read_ai2d(corpus: Corpus, split: str, ids: Path | list[Path]) -> Listing:
    pictures, numbers = TablePictures(corpus), itertools.count()
    folders = (corpus.folder, corpus.folder / "ai2d")
    root = next((folder for folder in folders if (folder / "questions").is_dir()), folders[0])

    def item_of_row(entry: tuple[Path, str, Mapping | None] | TableRow) -> Item:
        if isinstance(entry, TableRow):
            # A table has no ids, so its rows are numbered as they come, whether or not they are
            # good.
            key, choices = next(numbers), texts_under(entry, "options")
            correct = choice_under({"answer": int(entry["answer"])}, "answer", choices)
            media, text = pictures.store(entry), text_under(entry, "question")
            meta: dict[str, object] = {"question_id": key}
        else:
            path, text, row = entry
            if row is None:
                raise BadInput(text)
            choices = texts_under(row, "answerTexts")
            correct = choice_under(row, "correctAnswer", choices)
            # If the answers are letters, the picture must show these letters: they are written over
            # the diagram's own labels.
            labels = (
                _diagram_labels(corpus, root / "annotations" / path.name)
                if row["abcLabel"]
                else None
            )
            media = corpus.media(root / "images" / path.stem, edit=labels)
            key = row["questionId"]
            meta = {"question_id": key, "abc_label": bool(row["abcLabel"])}
        answers, options = [choices[correct]], BETWEEN.join(choices)
        return question_item(AI2D, split, media, key, text, answers, meta=meta, choices=options)

    # Tables have letters in their pictures already, so no annotations are looked up for them.
    if isinstance(ids, list):
        yield from read_file(corpus, ids, f"ai2d/{split}", item_of_row)
        return
    if not (root / "questions").is_dir():
        raise FileNotFoundError(f"{corpus.folder / 'questions'} is missing.")
    rows = _ai2d_rows(corpus, split, ids, root / "questions")
    yield from read_rows(corpus, ids, f"ai2d/{split}", rows, item_of_row)


def _ai2d_rows(
    corpus: Corpus, split: str, ids: Path, questions: Path
) -> Iterator[tuple[Path, str, Mapping | None]]:
    """Yields (file, question, its row); (file, error, None) for a file that cannot be read."""
    test = set(corpus.read_text(ids).split())
    for path in sorted(questions.glob("*.json")):
        if (Path(path.stem).stem in test) == (split == "test"):
            try:
                rows = load_dict(corpus, path, "questions")
            except ValueError as error:
                yield path, str(error), None
            else:
                yield from ((path, text, row) for text, row in rows.items())


def _diagram_labels(corpus: Corpus, path: Path) -> Edit:
    if not path.is_file():
        raise BadInput(f"{corpus.relative(path)} is missing")
    labels = []
    for row in load_dict(corpus, path, "text").values():
        (x0, y0), (x1, y1) = row["rectangle"]
        labels.append(
            (
                float(x0),
                float(y0),
                float(x1),
                float(y1),
                text_of(row["replacementText"], "replacementText"),
            )
        )
    return Edit(labels=tuple(labels))


def _read_science(corpus: Corpus, split: str, file: Path | list[Path]) -> Listing:
    inner = corpus.folder / "images" / split
    folder = inner if inner.is_dir() else corpus.folder / split
    pictures, numbers = TablePictures(corpus), itertools.count()

    def item_of_row(entry: tuple[str, dict] | TableRow) -> Item | None:
        if isinstance(entry, TableRow):
            key, row = str(next(numbers)), entry
            if row["image"] is None:
                return None
            media = pictures.store(row)
            image = media.member
        else:
            key, row = entry
            if row["split"] != split or not row["image"]:
                return None
            image = text_under(row, "image")
            media = corpus.media(folder / str(key) / image)
        choices = texts_under(row, "choices")
        correct = choice_under(row, "answer", choices)

        # The answer is a letter, so it changes with the order of the choices.
        def ordered_item(order: tuple[int, ...]) -> Item:
            options = ", ".join(f"({_choice_letter(n)}) {choices[i]}" for n, i in enumerate(order))
            return question_item(
                SCIENCE_QA,
                split,
                media,
                key,
                text_under(row, "question"),
                [f"The answer is {_choice_letter(order.index(correct))}."],
                meta={"question_id": key, "subject": row.get("subject", "")},
                image=f"{key}/{image}",
                context=row["hint"] or "N/A",
                choices=options,
            )

        # In the published order first: its id is the seed of the other orders.
        item = ordered_item(tuple(range(len(choices))))
        if split == "test":
            return item
        # Training shuffles the choices at every visit; evaluation reads them as published.
        shuffled = [ordered_item(order) for order in _choice_orders(len(choices), item.id)]
        return dataclasses.replace(
            item,
            suffixes=tuple(question.suffixes[0] for question in shuffled),
            prefixes=tuple((question.prefix,) for question in shuffled),
        )

    yield from read_file(corpus, file, f"science_qa/{split}", item_of_row, form="dict")


def _choice_orders(count: int, key: str) -> list[tuple[int, ...]]:
    """Returns all orders of `count` things, or `_MAX_ORDERS` random ones, seeded by `key`."""
    # 4 choices have 24 orders, all are listed; 5 have 120, of which 24 are drawn.
    if math.factorial(count) <= _MAX_ORDERS:
        return list(itertools.permutations(range(count)))
    rng = random.Random(stable_hash(key))
    orders: dict[tuple[int, ...], None] = {}
    while len(orders) < _MAX_ORDERS:
        orders[tuple(rng.sample(range(count), count))] = None
    return list(orders)


def _choice_letter(index: int) -> str:
    return chr(ord("A") + index)


_SCIENCE = ("ScienceQA-IMG", "ScienceQA-FULL", "data", ".")

SOURCES = (
    published_source(
        AI2D,
        splits=("train", "test"),
        files=lambda split: (("ai2d_test_ids.csv", "ai2d/ai2d_test_ids.csv"),),
        read=_read_ai2d,
        publisher="prior.allenai.org/projects/diagrams",
        tables={"test": table_patterns("test")},
        per_table=False,
    ),
    published_source(
        SCIENCE_QA,
        splits=("train", "val", "test"),
        files=lambda split: (("problems.json", "data/scienceqa/problems.json"),),
        read=_read_science,
        publisher="scienceqa.github.io",
        tables={
            split: table_patterns(on_hub, folders=_SCIENCE)
            for split, on_hub in (("train", "train"), ("val", "validation"), ("test", "test"))
        },
        per_table=False,
    ),
)
