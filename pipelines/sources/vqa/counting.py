"""Counting and presence: TallyQA, CountBenchQA, POPE.

tallyqa       {train,test}.json    image ("VG_100K/1.jpg", "train2014/..."), question_id, answer
              images of Visual Genome and COCO 2014 in this folder, visual_genome/ or coco/
countbenchqa  data/*.parquet      image {"bytes"}, number; rows without bytes or colour are left out
              countbench_paired_questions.json    question; one entry per row of the table
pope          coco_pope_{random,popular,adversarial}.json    JSON lines: image, text, label
              val2014/ in this folder or in coco/

The Hub's vikhyatk/CountBenchQA, which has the questions in its table, and lmms-lab/POPE can be read
as well.
"""

import io
import itertools
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from pipelines.benchmarks.vqa import BENCHMARKS
from pipelines.records.schema import BadInput
from pipelines.sources.corpus import Corpus
from pipelines.sources.hub import Pictures, named, or_tables, read_tables
from pipelines.sources.item import Item, Media
from pipelines.sources.layout import (
    Found,
    image_folder,
    json_lines,
    load_list,
    question,
    read_rows,
    text_of,
)
from pipelines.sources.spec import published

_POPE = ("random", "popular", "adversarial")
_SIMPLE = {"test_simple": True, "test_complex": False}


def _read_tallyqa(corpus: Corpus, split: str, file: Path) -> Found:
    part = split.partition("_")[0]
    folders: dict[str, Path] = {}

    def make(row: dict) -> Item | None:
        simple = row.get("issimple")
        if part == "test" and simple is None:
            raise KeyError("issimple")
        if split in _SIMPLE and bool(simple) != _SIMPLE[split]:
            return None
        top, _, name = text_of(row, "image").partition("/")
        if top not in folders:
            folders[top] = image_folder(corpus, top, "visual_genome", "coco")
        answer = str(int(row["answer"]))
        return question(
            BENCHMARKS["tallyqa"],
            part,
            corpus.media(folders[top] / name),
            row["question_id"],
            text_of(row, "question"),
            [answer],
            meta={} if simple is None else {"issimple": int(simple)},
        )

    yield from read_rows(corpus, file, f"tallyqa/{split}", load_list(corpus, file), make)


def _read_countbench(corpus: Corpus, split: str, table: Path, questions: Path) -> Found:
    from pyarrow import parquet

    asked = load_list(corpus, questions)
    with table.open("rb") as opened, parquet.ParquetFile(opened) as file:
        if file.metadata.num_rows != len(asked):
            raise ValueError(
                f"{questions} must have a question for each of the {file.metadata.num_rows} rows "
                f"of {table.name}, got {len(asked)}."
            )
        rows = (row for batch in file.iter_batches(64) for row in batch.to_pylist())

        def make(entry: tuple[int, tuple[dict, dict]]) -> Item | None:
            number, (row, ask) = entry
            data = (row["image"] or {}).get("bytes")
            if not data or not _has_colour(data):
                return None
            place = corpus.spool.put(data)
            media = Media(path=corpus.relative(table), member=f"{number:04d}", **place)  # type: ignore[arg-type]
            return question(
                BENCHMARKS["countbenchqa"],
                split,
                media,
                number,
                text_of(ask, "question"),
                [str(int(row["number"]))],
            )

        numbered = enumerate(zip(rows, asked, strict=True))
        yield from read_rows(corpus, table, f"countbenchqa/{split}", numbered, make)


def _read_countbench_tables(corpus: Corpus, split: str, tables: Sequence[Path]) -> Found:
    pictures, numbers = Pictures(corpus), itertools.count()

    def make(table: Path, row: dict) -> Item | None:
        number = next(numbers)
        data = (row["image"] or {}).get("bytes")
        if not data or not _has_colour(data):
            return None
        media = pictures.keep(table, row["image"], f"{number:04d}")
        answers, asked = [str(int(row["number"]))], text_of(row, "question")
        return question(BENCHMARKS["countbenchqa"], split, media, number, asked, answers)

    yield from read_tables(corpus, f"countbenchqa/{split}", tables, make)


def _has_colour(data: bytes) -> bool:
    """Returns whether an image is RGB; True for bad bytes, which are rejected when decoded."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.mode == "RGB"
    except (UnidentifiedImageError, OSError):
        return True


def _read_pope(corpus: Corpus, split: str, file: Path) -> Found:
    folder = image_folder(corpus, "val2014", "coco")

    def make(line) -> Item:
        row = line()
        media = corpus.media(folder / text_of(row, "image"))
        key, text = row["question_id"], text_of(row, "text")
        return _pope_question(split, media, key, text, row["label"])

    yield from read_rows(corpus, file, f"pope/{split}", json_lines(file), make)


def _read_pope_tables(corpus: Corpus, split: str, tables: Sequence[Path]) -> Found:
    pictures = Pictures(corpus)

    def make(table: Path, row: dict) -> Item | None:
        if row["category"] != split:
            return None
        media = pictures.keep(table, row["image"], f"{text_of(row, 'image_source')}.jpg")
        key, text = int(row["question_id"]), text_of(row, "question")
        return _pope_question(split, media, key, text, row["answer"])

    yield from read_tables(corpus, f"pope/{split}", tables, make)


def _pope_question(split: str, media: Media, key: int, text: str, label: object) -> Item:
    answer = str(label).strip().lower()
    if answer not in ("yes", "no"):
        raise BadInput(f"label must be yes or no, got {label!r}")
    return question(BENCHMARKS["pope"], split, media, key, text, [answer], meta={"kind": split})


SOURCES = (
    or_tables(
        published(
            BENCHMARKS["countbenchqa"],
            splits=("huggingface",),
            files=lambda split: (
                ("data/*.parquet", "*.parquet"),
                ("countbench_paired_questions.json", "data/countbench_paired_questions.json"),
            ),
            read=_read_countbench,
            publisher="huggingface.co/datasets/nielsr/countbench (questions: big_vision "
            "datasets/countbenchqa/data)",
        ),
        {"huggingface": named("test")},
        _read_countbench_tables,
        apart=False,
    ),
    or_tables(
        published(
            BENCHMARKS["pope"],
            splits=_POPE,
            files=lambda split: (
                (f"coco_pope_{split}.json", f"output/coco/coco_pope_{split}.json"),
            ),
            read=_read_pope,
            publisher="github.com/RUCAIBox/POPE",
        ),
        {split: (f"Full/{split}-*.parquet", *named("test")) for split in _POPE},
        _read_pope_tables,
    ),
    published(
        BENCHMARKS["tallyqa"],
        splits=("train", "test", *_SIMPLE),
        files=lambda split: ((f"{split.partition('_')[0]}.json",),),
        read=_read_tallyqa,
        publisher="github.com/manoja328/TallyQA_dataset",
        whole=lambda split: split.partition("_")[0],
    ),
)
