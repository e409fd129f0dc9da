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
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow, zero_shot
from pipelines.records.schema import BadInput
from pipelines.sources.benchmark_sources import published_source, table_patterns
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.hub import TablePictures, TableRow, count_rows, number_under
from pipelines.sources.reading.item import Item, Listing
from pipelines.sources.reading.layout import image_folder, question_item, text_under
from pipelines.sources.reading.row_files import load_list, read_file

TALLYQA = Benchmark(
    name="tallyqa",
    config="tallyqa",
    prompt="answer en {text}",
    text_len=32,
    antialias="always",
    metric="tallyqa",
    final_split="train",
    eval_split="test",
    rows=(
        ResultRow(
            titles=("TallyQA (simple)",), split="test_simple", size=22_991, resolutions=(224,)
        ),
        ResultRow(
            titles=("TallyQA (complex)",), split="test_complex", size=15_598, resolutions=(224,)
        ),
    ),
    num_train=249_318,
    recipes={
        224: FinetuneRecipe(lr_pg1=1e-5, lr_pg2=6e-6, epochs=2),
        448: FinetuneRecipe(lr_pg1=1e-5, lr_pg2=6e-6, decay=True, epochs=2),
    },
)

COUNTBENCHQA = zero_shot(
    TALLYQA,
    name="countbenchqa",
    eval_split="huggingface",
    rows=(ResultRow(titles=("CountBenchQA",), split="huggingface", size=490, resolutions=(224,)),),
)

POPE = Benchmark(
    name="pope",
    config="pope",
    parent="vqav2",
    prompt="answer en {text}",
    text_len=48,
    metric="pope_big_vision",
    zero_shot_metric="pope",
    eval_split="random+popular+adversarial",
    rows=(
        ResultRow(
            titles=("POPE",),
            split="random+popular+adversarial",
            suite="other",
            size=9_000,
            resolutions=(),
        ),
    ),
)

_POPE = ("random", "popular", "adversarial")
_SIMPLE = {"test_simple": True, "test_complex": False}


def _read_tallyqa(corpus: Corpus, split: str, file: Path) -> Listing:
    part = split.partition("_")[0]
    folders: dict[str, Path] = {}

    def item_of_row(row: dict) -> Item | None:
        simple = row.get("issimple")
        # Test rows must say whether they are simple, as both halves are scored apart; training rows
        # need not.
        if part == "test" and simple is None:
            raise KeyError("issimple")
        if split in _SIMPLE and bool(simple) != _SIMPLE[split]:
            return None
        top, _, name = text_under(row, "image").partition("/")
        # "VG_100K/1.jpg": each first folder is looked up once.
        if top not in folders:
            folders[top] = image_folder(corpus, top, "visual_genome", "coco")
        answer = str(int(row["answer"]))
        return question_item(
            TALLYQA,
            part,
            corpus.media(folders[top] / name),
            row["question_id"],
            text_under(row, "question"),
            [answer],
            meta={} if simple is None else {"issimple": int(simple)},
        )

    yield from read_file(corpus, file, f"tallyqa/{split}", item_of_row)


def _read_countbench(
    corpus: Corpus, split: str, file: Path | list[Path], questions: Path | None = None
) -> Listing:
    # The authors' table lacks the questions, which lie in a second file in the same order.
    texts = None
    if not isinstance(file, list) and questions is not None:
        texts = load_list(corpus, questions)
        num_rows = count_rows(corpus, file)
        if num_rows != len(texts):
            raise ValueError(
                f"{questions} must have a question for each of the {num_rows} rows "
                f"of {file.name}, got {len(texts)}."
            )
    pictures, numbers = TablePictures(corpus), itertools.count()

    def item_of_row(row: TableRow) -> Item | None:
        # Every row is numbered, also those left out: the second file has a question for each.
        number = next(numbers)
        data = (row["image"] or {}).get("bytes")
        if not data or not _has_colour(data):
            return None
        media = pictures.store(row, f"{number:04d}")
        text = text_under(row if texts is None else texts[number], "question")
        return question_item(COUNTBENCHQA, split, media, number, text, [str(int(row["number"]))])

    yield from read_file(corpus, file, f"countbenchqa/{split}", item_of_row, form="table")


def _has_colour(data: bytes) -> bool:
    """Returns whether an image is RGB; True for bad bytes, which are rejected when decoded."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.mode == "RGB"
    except (UnidentifiedImageError, OSError):
        return True


def _read_pope(corpus: Corpus, split: str, file: Path | list[Path]) -> Listing:
    folder = image_folder(corpus, "val2014", "coco")
    pictures = TablePictures(corpus)

    def item_of_row(row: dict) -> Item | None:
        if isinstance(row, TableRow):
            # A table has all three kinds of question; the authors have a file for each.
            if row["category"] != split:
                return None
            media = pictures.store(row, f"{text_under(row, 'image_source')}.jpg")
            text_key, label_key = "question", "answer"
        else:
            media = corpus.media(folder / text_under(row, "image"))
            text_key, label_key = "text", "label"
        key, text = number_under(row, "question_id"), text_under(row, text_key)
        answer = str(row[label_key]).strip().lower()
        if answer not in ("yes", "no"):
            raise BadInput(f"label must be yes or no, got {row[label_key]!r}")
        return question_item(POPE, split, media, key, text, [answer], meta={"kind": split})

    yield from read_file(corpus, file, f"pope/{split}", item_of_row, form="lines")


SOURCES = (
    published_source(
        COUNTBENCHQA,
        splits=("huggingface",),
        files=lambda split: (
            ("data/*.parquet", "*.parquet"),
            ("countbench_paired_questions.json", "data/countbench_paired_questions.json"),
        ),
        read=_read_countbench,
        publisher="huggingface.co/datasets/nielsr/countbench (questions: big_vision "
        "datasets/countbenchqa/data)",
        tables={"huggingface": table_patterns("test")},
        per_table=False,
    ),
    published_source(
        POPE,
        splits=_POPE,
        files=lambda split: ((f"coco_pope_{split}.json", f"output/coco/coco_pope_{split}.json"),),
        read=_read_pope,
        publisher="github.com/RUCAIBox/POPE",
        tables={split: (f"Full/{split}-*.parquet", *table_patterns("test")) for split in _POPE},
    ),
    published_source(
        TALLYQA,
        splits=("train", "test", *_SIMPLE),
        files=lambda split: ((f"{split.partition('_')[0]}.json",),),
        read=_read_tallyqa,
        publisher="github.com/manoja328/TallyQA_dataset",
        containing_split=lambda split: split.partition("_")[0],
    ),
)
