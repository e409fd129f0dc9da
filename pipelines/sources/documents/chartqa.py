"""ChartQA: questions about charts, written by people ("human") or from summaries ("augmented").

    ChartQA Dataset/{train,val,test}/{split}_{human,augmented}.json   imgname, query, label
    ChartQA Dataset/{split}/png/{imgname}

Published by its authors at github.com/vis-nlp/ChartQA (GPL-3.0). The Hub's HuggingFaceM4/ChartQA
and lmms-lab/ChartQA (test only) can be read as well. A question's number counts the rows of its
kind.
"""

import functools
from collections import Counter
from pathlib import Path

from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow
from pipelines.sources.benchmark_sources import benchmark_source, table_patterns, with_tables
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.hub import TablePictures, TableRow
from pipelines.sources.reading.item import Item, Listing
from pipelines.sources.reading.layout import question_item, text_under
from pipelines.sources.reading.row_files import read_file
from pipelines.sources.reading.values import answer_of

_RECIPE = FinetuneRecipe(
    lr_pg1=1e-5, lr_pg2=3e-6, decay=True, epochs=30, label_smoothing=0.2, dropout=0.1
)

CHARTQA = Benchmark(
    name="chartqa",
    config="chartqa",
    prompt="{text}",
    text_len=48,
    antialias="always",
    metric="relaxed_accuracy",
    tune_split="train",
    final_split="train+val",
    eval_split="test",
    rows=(
        ResultRow(titles=("ChartQA (human)",), split="test_human", suite="main", size=1_250),
        ResultRow(titles=("ChartQA (aug)",), split="test_augmented", suite="main", size=1_250),
    ),
    num_train=30_219,
    recipes={224: _RECIPE, 448: _RECIPE},
)

KINDS = ("human", "augmented")
_PARTS = ("train", "val", "test")
SPLITS = (*_PARTS, *(f"{part}_{kind}" for part in _PARTS for kind in KINDS))


def chartqa_files(split: str) -> tuple[tuple[str, ...], ...]:
    """Returns the annotation files of a split, each as a tuple of its possible names."""
    part, _, split_kind = split.partition("_")
    kinds = (split_kind,) if split_kind else KINDS
    names = [f"{part}/{part}_{kind}.json" for kind in kinds]
    return tuple((f"ChartQA Dataset/{name}", name) for name in names)


_KIND_OF = {
    0: "human",
    1: "augmented",
    "human_test": "human",
    "augmented_test": "augmented",
}
"""Value of a table's `human_or_machine` or `type` -> kind."""


def read_chartqa(corpus: Corpus, split: str, tables: list[Path] | None = None) -> Listing:
    """Yields a would-be record per question; if one kind is absent it is skipped.

    "test_human" has only the questions of people; their records are the same as in "test".

    Args:
      corpus: the corpus.
      split: one of `SPLITS`.
      tables: the split's tables; None reads the authors' files.

    Raises:
      FileNotFoundError: if there are no tables and all kinds are absent.
    """
    part, _, split_kind = split.partition("_")
    # The archive may be unpacked with or without its outer folder.
    nested = corpus.folder / "ChartQA Dataset"
    folder = (nested if nested.is_dir() else corpus.folder) / part
    pictures, numbers = TablePictures(corpus), Counter[str]()

    def item_of_row(kind_of_file: str, row: dict) -> Item | None:
        kind = (
            kind_of_file
            or _KIND_OF[row["human_or_machine"] if "human_or_machine" in row else row["type"]]
        )
        # Rows that are left out or malformed count too, so that a number means the same row in
        # "test" and "test_human".
        number = numbers[kind]
        numbers[kind] += 1
        if split_kind and kind != split_kind:
            return None
        if isinstance(row, TableRow):
            # Tables on the Hub differ in the names of their columns.
            label = row["label"][0] if "label" in row else row["answer"]
            media, image = pictures.store(row), ""
            text = text_under(row, "query" if "query" in row else "question")
        else:
            image = row["imgname"]
            media = corpus.media(folder / "png" / image)
            text, label = text_under(row, "query"), row["label"]
        key, meta = f"{kind}-{number}", {"kind": kind}
        answers = [answer_of(label, "label")]
        return question_item(CHARTQA, part, media, key, text, answers, image=image, meta=meta)

    # Authors' files have a kind each; in tables a column says which kind a row is.
    if tables:
        of_table = functools.partial(item_of_row, "")
        yield from read_file(corpus, tables, f"chartqa/{split}", of_table)
        return
    paths = {
        kind: folder / f"{part}_{kind}.json" for kind in ((split_kind,) if split_kind else KINDS)
    }
    present = {kind: file for kind, file in paths.items() if file.is_file()}
    if not present:
        # All kinds are absent: this raises the error that names the first file.
        corpus.annotation(next(iter(paths.values())))
    for kind, file in present.items():
        of_kind = functools.partial(item_of_row, kind)
        yield from read_file(corpus, file, f"chartqa/{part}/{kind}", of_kind)


SOURCES = (
    with_tables(
        benchmark_source(
            CHARTQA,
            splits=SPLITS,
            files=chartqa_files,
            read=read_chartqa,
            publisher="github.com/vis-nlp/ChartQA",
            containing_split=lambda split: split.partition("_")[0],
        ),
        {split: table_patterns(split.partition("_")[0]) for split in SPLITS},
        read_chartqa,
        per_table=False,
    ),
)
