"""MMMU: college exams in thirty subjects, with choices or open, about up to seven images.

    {subject}/{dev,validation,test}-*.parquet, as in the Hub's MMMU/MMMU
        id, question, options ("['a', 'b']"), answer, question_type, image_1

Only the first image is seen, as by the authors' own code for models of one image. That code guesses
where several choices are images; here those, too, are asked with the first.
"""

from pathlib import Path

from pipelines.benchmarks.prompts import LETTER, SHORT_ANSWER
from pipelines.benchmarks.row import Benchmark, ResultRow
from pipelines.records.schema import BadInput
from pipelines.sources.benchmark_sources import published_source
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.hub import TablePictures, TableRow, literal_list
from pipelines.sources.reading.item import Item, Listing
from pipelines.sources.reading.layout import question_item, text_under
from pipelines.sources.reading.row_files import read_file
from pipelines.sources.reading.values import is_absent

MMMU = Benchmark(
    name="mmmu",
    config="",
    prompt="{text}\n{choices}",
    text_len=768,
    antialias="always",
    metric="mmmu",
    eval_split="validation",
    rows=(
        ResultRow(titles=("MMMU",), split="validation", suite="other", size=900, resolutions=()),
    ),
)


_SUBJECTS = (
    "Accounting",
    "Agriculture",
    "Architecture_and_Engineering",
    "Art",
    "Art_Theory",
    "Basic_Medical_Science",
    "Biology",
    "Chemistry",
    "Clinical_Medicine",
    "Computer_Science",
    "Design",
    "Diagnostics_and_Laboratory_Medicine",
    "Economics",
    "Electronics",
    "Energy_and_Power",
    "Finance",
    "Geography",
    "History",
    "Literature",
    "Manage",
    "Marketing",
    "Materials",
    "Math",
    "Mechanical_Engineering",
    "Music",
    "Pharmacy",
    "Physics",
    "Psychology",
    "Public_Health",
    "Sociology",
)


def _read_mmmu(corpus: Corpus, split: str, *first_tables: Path) -> Listing:
    for first in first_tables:
        for table in sorted(first.parent.glob(f"{split}-*.parquet")):
            yield from _read_table(corpus, split, table)


def _read_table(corpus: Corpus, split: str, table: Path) -> Listing:
    pictures, subject = TablePictures(corpus), table.parent.name

    def item_of_row(row: TableRow) -> Item:
        key, text = text_under(row, "id"), text_under(row, "question")
        # A question is asked with one picture: of several, the first.
        media = pictures.store(TableRow(table, {"image": row["image_1"]}), f"{key}.png")
        # The test split's answers are not published.
        answers = [] if split == "test" else _texts_of_cell(row["answer"], "answer")
        if row["question_type"] == "multiple-choice":
            options = _texts_of_cell(row["options"], "options")
            letters = [chr(ord("A") + number) for number in range(len(options))]
            if split != "test" and (len(answers) != 1 or answers[0] not in letters):
                raise BadInput(f"answer must be one of {', '.join(letters)}, got {answers!r:.40}")
            listed = zip(letters, options, strict=True)
            choices = "".join(f"({letter}) {option}\n" for letter, option in listed) + f"\n{LETTER}"
        else:
            choices = SHORT_ANSWER
            options = []
        return question_item(
            MMMU,
            split,
            media,
            key,
            text,
            answers,
            meta={"subject": subject, "options": options},
            choices=choices,
        )

    yield from read_file(corpus, [table], f"mmmu/{split}/{subject}", item_of_row)


def _texts_of_cell(cell: object, field: str) -> list[str]:
    """Returns the texts of a cell, which holds a list as a Python literal, or one text."""
    if isinstance(cell, str) and cell.startswith("["):
        cell = literal_list(cell, field)
    cells = cell if isinstance(cell, list) else [cell]
    if any(map(is_absent, cells)):
        raise BadInput(f"{field} must be texts, got {cell!r}"[:120])
    return [str(text) for text in cells]


SOURCES = (
    published_source(
        MMMU,
        splits=("dev", "validation", "test"),
        files=lambda split: tuple((f"{subject}/{split}-*.parquet",) for subject in _SUBJECTS),
        read=_read_mmmu,
        publisher="huggingface.co/datasets/MMMU/MMMU",
    ),
)
