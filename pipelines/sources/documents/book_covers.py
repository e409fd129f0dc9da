"""OCR-VQA: questions about book covers.

    dataset.json    {key: {imageURL, questions[], answers[], split 1/2/3, title, ...}}
    images/{key}{extension of imageURL}

The order behind slices such as "val[20000:]" is not published; ours is that of every source, by
digests of the records' ids.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from pipelines.benchmarks.documents import BENCHMARKS
from pipelines.records.schema import BadInput
from pipelines.sources.corpus import Corpus
from pipelines.sources.item import Item
from pipelines.sources.layout import Found, load_dict, question, read_rows, texts_of
from pipelines.sources.spec import published

_NUMBERS = {"train": 1, "val": 2, "test": 3}


def _read(corpus: Corpus, split: str, file: Path) -> Found:
    def make(entry: tuple[str, dict]) -> Iterator[Item]:
        key, row = entry
        if row["split"] not in _NUMBERS.values():
            raise BadInput(f"split must be 1, 2 or 3, got {row['split']!r}")
        if row["split"] != _NUMBERS[split]:
            return
        questions, answers = texts_of(row, "questions"), texts_of(row, "answers")
        if len(questions) != len(answers):
            raise BadInput(f"{len(questions)} questions and {len(answers)} answers")
        extension = PurePosixPath(urlsplit(row["imageURL"]).path).suffix
        media = corpus.media(corpus.folder / "images" / f"{key}{extension}")
        for number, (asked, answer) in enumerate(zip(questions, answers, strict=True)):
            yield question(BENCHMARKS["ocrvqa"], split, media, number, asked, [answer])

    rows = load_dict(corpus, file).items()
    yield from read_rows(corpus, file, f"ocrvqa/{split}", rows, make)


SOURCES = (
    published(
        BENCHMARKS["ocrvqa"],
        splits=tuple(_NUMBERS),
        files=lambda split: (("dataset.json",),),
        read=_read,
        publisher="ocr-vqa.github.io",
    ),
)
