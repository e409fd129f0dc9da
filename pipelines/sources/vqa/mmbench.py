"""MMBench: questions with two or more choices, each asked with its choices rotated.

    mmbench_{dev,test}_20230712.tsv, or VLMEvalKit's MMBench_{DEV,TEST}_EN.tsv
        index, question, hint, A, B, C, D, answer, category, image

An image is base64, or the index of an earlier row with the same image. A rotation's index is that
of its question plus a multiple of a million. The Hub's lmms-lab/MMBench can be read as well.
"""

from collections.abc import Mapping
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from pipelines.benchmarks.prompts import LETTER
from pipelines.benchmarks.row import Benchmark, ResultRow
from pipelines.records.schema import BadInput
from pipelines.sources.benchmark_sources import published_source, table_patterns
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.hub import TablePictures, TableRow
from pipelines.sources.reading.item import Item, Listing, Media
from pipelines.sources.reading.layout import question_item, text_under
from pipelines.sources.reading.row_files import read_file
from pipelines.sources.reading.values import is_absent

MMBENCH = Benchmark(
    name="mmbench",
    config="",
    prompt=f"{{context}}{{text}}\n{{choices}}\n{LETTER}",
    text_len=384,
    antialias="always",
    metric="mmbench",
    eval_split="dev",
    rows=(ResultRow(titles=("MMBench",), split="dev", suite="other", size=4_329, resolutions=()),),
)

_ROTATION = 1_000_000
_EMPTY = ("", "nan", "none")


def _read_mmbench(corpus: Corpus, split: str, file: Path | list[Path]) -> Listing:
    pictures, media_of = TablePictures(corpus), dict[int, Media]()

    def item_of_row(row: Any) -> Item:
        index = int(row["index"])
        image = row["image"]
        if isinstance(image, str) and image.strip().isdecimal():
            if (media := media_of.get(int(image))) is None:
                raise BadInput(f"image must be base64 or an earlier row's index, got {image!r:.40}")
        else:
            table = file if isinstance(file, Path) else row.table
            media = pictures.store(TableRow(table, {"image": image}), f"{index % _ROTATION}.jpg")
        media_of[index] = media
        options = _choices_by_letter(row)
        answers = _answer_letters(row, split, options)
        hint = row.get("hint")
        return question_item(
            MMBENCH,
            split,
            media,
            index,
            text_under(row, "question"),
            answers,
            meta={
                "question": index % _ROTATION,
                "options": list(options.values()),
                "category": str(row.get("category") or ""),
            },
            context="" if _is_empty(hint) else f"{hint}\n",
            choices="\n".join(f"{letter}. {text}" for letter, text in options.items()),
        )

    yield from read_file(corpus, file, f"mmbench/{split}", item_of_row, form="csv")


def _choices_by_letter(row: Mapping) -> dict[str, str]:
    """Returns letter -> choice, from A on, two at least; none before the last may be empty."""
    options = {x: str(row[x]) for x in ascii_uppercase if not _is_empty(row.get(x), ("", "nan"))}
    for expected, letter in zip(ascii_uppercase, options, strict=False):
        # A tool may have taken the text "None" for a missing value; what it was is not guessed.
        if letter != expected:
            raise BadInput(f"choice {expected} is empty and {letter} is not; fill {expected}")
    if len(options) < 2:
        raise BadInput(f"A and B must be choices, got {len(options)}")
    return options


def _answer_letters(row: Mapping, split: str, options: Mapping[str, str]) -> list[str]:
    answer = row.get("answer")
    if split == "test" and _is_empty(answer):
        return []
    if answer not in tuple(options):
        raise BadInput(f"answer must be one of {', '.join(options)}, got {answer!r:.40}")
    return [str(answer)]


def _is_empty(value: object, empty: tuple[str, ...] = _EMPTY) -> bool:
    return is_absent(value) or str(value).strip().lower() in empty


SOURCES = (
    published_source(
        MMBENCH,
        splits=("dev", "test"),
        files=lambda split: (
            (
                f"mmbench_{split}_20230712.tsv",
                f"mmbench_{split}_en_20231003.tsv",
                f"MMBench_{split.upper()}_EN.tsv",
            ),
        ),
        read=_read_mmbench,
        publisher="github.com/open-compass/MMBench",
        tables={
            split: table_patterns(split, folders=("en", "data", ".")) for split in ("dev", "test")
        },
        per_table=False,
    ),
)
