"""MMBench: questions with two to four choices, each asked with its choices rotated.

    mmbench_{dev,test}_20230712.tsv, or VLMEvalKit's MMBench_{DEV,TEST}_EN.tsv
        index, question, hint, A, B, C, D, answer, category, image

An image is base64, or the index of an earlier row with the same image. A rotation's index is that
of its question plus a multiple of a million. The Hub's lmms-lab/MMBench can be read as well.
"""

from collections.abc import Mapping
from pathlib import Path
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
        options = _options(row)
        answers = _answers(row, split, len(options))
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
                "options": options,
                "category": str(row.get("category") or ""),
            },
            context="" if _is_empty(hint) else f"{hint}\n",
            choices="\n".join(
                f"{letter}. {text}" for letter, text in zip("ABCD", options, strict=False)
            ),
        )

    yield from read_file(corpus, file, f"mmbench/{split}", item_of_row, form="csv")


def _options(row: Mapping) -> list[str]:
    """Returns the choices, which fill A, B, C and D from the left."""
    options = []
    for letter in "ABCD":
        if is_absent(text := row.get(letter)) or str(text).strip().lower() in ("", "nan"):
            break
        options.append(str(text))
    if len(options) < 2:
        raise BadInput(f"A and B must be choices, got {len(options)}")
    return options


def _answers(row: Mapping, split: str, count: int) -> list[str]:
    answer = row.get("answer")
    if split == "test" and _is_empty(answer):
        return []
    if answer not in tuple("ABCD"[:count]):
        raise BadInput(f"answer must be one of {', '.join('ABCD'[:count])}, got {answer!r:.40}")
    return [str(answer)]


def _is_empty(value: object) -> bool:
    return is_absent(value) or str(value).strip().lower() in _EMPTY


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
