"""OCR-VQA: questions about book covers.

    dataset.json    {key: {imageURL, questions[], answers[], split 1/2/3, title, ...}}
    images/{key}{extension of imageURL}

The order behind slices such as "val[20000:]" is not published; here it is the order of the hashes
of the records' ids, as for every source.

The Hub's howard-hou/OCR-VQA can be read as well.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from pipelines.benchmarks.documents import BENCHMARKS
from pipelines.records.schema import BadInput
from pipelines.sources.corpus import Corpus
from pipelines.sources.hub import Pictures, named, or_tables, read_tables
from pipelines.sources.item import Item, Media
from pipelines.sources.layout import Found, load_dict, question, read_rows, text_of, texts_of
from pipelines.sources.spec import published

_NUMBERS = {"train": 1, "val": 2, "test": 3}


def _read(corpus: Corpus, split: str, file: Path) -> Found:
    def make(entry: tuple[str, dict]) -> Iterator[Item]:
        key, row = entry
        if row["split"] not in _NUMBERS.values():
            raise BadInput(f"split must be 1, 2 or 3, got {row['split']!r}")
        if row["split"] != _NUMBERS[split]:
            return
        yield from _questions(
            split, row, lambda: corpus.media(corpus.folder / "images" / _file(key, row["imageURL"]))
        )

    rows = load_dict(corpus, file).items()
    yield from read_rows(corpus, file, f"ocrvqa/{split}", rows, make)


def _read_tables(corpus: Corpus, split: str, tables: Sequence[Path]) -> Found:
    pictures = Pictures(corpus)

    def make(table: Path, row: dict) -> Iterator[Item]:
        name = _file(text_of(row, "image_id"), row["image_url"])
        return _questions(split, row, lambda: pictures.keep(table, row["image"], name))

    yield from read_tables(corpus, f"ocrvqa/{split}", tables, make)


def _file(key: str, url: str) -> str:
    return f"{key}{PurePosixPath(urlsplit(url).path).suffix}"


def _questions(split: str, row: dict, find: Callable[[], Media]) -> Iterator[Item]:
    questions, answers = texts_of(row, "questions"), texts_of(row, "answers")
    if len(questions) != len(answers):
        raise BadInput(f"{len(questions)} questions and {len(answers)} answers")
    media = find()
    for number, (asked, answer) in enumerate(zip(questions, answers, strict=True)):
        yield question(BENCHMARKS["ocrvqa"], split, media, number, asked, [answer])


SOURCES = (
    or_tables(
        published(
            BENCHMARKS["ocrvqa"],
            splits=tuple(_NUMBERS),
            files=lambda split: (("dataset.json",),),
            read=_read,
            publisher="ocr-vqa.github.io",
        ),
        {"train": named("train"), "val": named("validation"), "test": named("test")},
        _read_tables,
    ),
)
