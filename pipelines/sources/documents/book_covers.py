"""OCR-VQA: questions about book covers.

    dataset.json    {key: {imageURL, questions[], answers[], split 1/2/3, title, ...}}
    images/{key}{extension of imageURL}

The order behind slices such as "val[20000:]" is not published; here it is the order of the hashes
of the records' ids, as for every source.

The Hub's howard-hou/OCR-VQA can be read as well.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow
from pipelines.records.schema import BadInput
from pipelines.sources.benchmark_sources import published_source, table_patterns
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.hub import TablePictures, TableRow
from pipelines.sources.reading.item import Item, Listing
from pipelines.sources.reading.layout import question_item, text_under, texts_under
from pipelines.sources.reading.row_files import read_file

_OCRVQA = FinetuneRecipe(batch_size=128, lr_pg1=3e-6, lr_pg2=1e-6, epochs=3)

OCRVQA = Benchmark(
    name="ocrvqa",
    config="ocrvqa",
    prompt="answer en {text}",
    text_len=32,
    antialias="always",
    metric="vqa_lower",
    tune_split="train+val[20000:]",
    final_split="train+val",
    eval_split="test",
    rows=(ResultRow(titles=("OCR-VQA",), split="test", suite="main"),),
    num_train=901_717,
    recipes={224: _OCRVQA, 448: _OCRVQA},
)

_NUMBERS = {"train": 1, "val": 2, "test": 3}


def _read_ocrvqa(corpus: Corpus, split: str, file: Path | list[Path]) -> Listing:
    pictures = TablePictures(corpus)

    def items_of_row(entry: tuple[str, dict] | TableRow) -> Iterator[Item]:
        # A table holds one split and the picture; the authors' file holds all splits, as numbers,
        # and the address of the picture, of which only the extension is of use.
        if isinstance(entry, TableRow):
            row, name = entry, _cover_file_name(text_under(entry, "image_id"), entry["image_url"])
        else:
            key, row = entry
            if row["split"] not in _NUMBERS.values():
                raise BadInput(f"split must be 1, 2 or 3, got {row['split']!r}")
            if row["split"] != _NUMBERS[split]:
                return
            name = _cover_file_name(key, row["imageURL"])
        questions, answers = texts_under(row, "questions"), texts_under(row, "answers")
        if len(questions) != len(answers):
            raise BadInput(f"{len(questions)} questions and {len(answers)} answers")
        if isinstance(row, TableRow):
            media = pictures.store(row, name)
        else:
            media = corpus.media(corpus.folder / "images" / name)
        # A book is one row, with as many records as questions.
        for number, (text, answer) in enumerate(zip(questions, answers, strict=True)):
            yield question_item(OCRVQA, split, media, number, text, [answer])

    yield from read_file(corpus, file, f"ocrvqa/{split}", items_of_row, form="dict")


def _cover_file_name(key: str, url: str) -> str:
    return f"{key}{PurePosixPath(urlsplit(url).path).suffix}"


SOURCES = (
    published_source(
        OCRVQA,
        splits=tuple(_NUMBERS),
        files=lambda split: (("dataset.json",),),
        read=_read_ocrvqa,
        publisher="ocr-vqa.github.io",
        tables={
            "train": table_patterns("train"),
            "val": table_patterns("validation"),
            "test": table_patterns("test"),
        },
    ),
)
