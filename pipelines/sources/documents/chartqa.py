"""ChartQA: questions about charts, written by people ("human") or from summaries ("augmented").

    ChartQA Dataset/{train,val,test}/{split}_{human,augmented}.json   imgname, query, label
    ChartQA Dataset/{split}/png/{imgname}

Published by its authors at github.com/vis-nlp/ChartQA (GPL-3.0). The Hub's HuggingFaceM4/ChartQA
and lmms-lab/ChartQA (test only) can be read as well. A question's number counts the rows of its
kind.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.benchmarks.documents import BENCHMARKS
from pipelines.records.schema import Reject
from pipelines.sources.corpus import Corpus
from pipelines.sources.hub import Pictures, named, or_tables, read_tables
from pipelines.sources.item import Item
from pipelines.sources.layout import load_list, question, read_rows, text_of
from pipelines.sources.spec import of_benchmark

KINDS = ("human", "augmented")
_PARTS = ("train", "val", "test")
SPLITS = (*_PARTS, *(f"{part}_{kind}" for part in _PARTS for kind in KINDS))


def files(split: str) -> tuple[tuple[str, ...], ...]:
    """Returns the annotation files of a split, each as a tuple of its possible names."""
    part, _, only = split.partition("_")
    kinds = (only,) if only else KINDS
    names = [f"{part}/{part}_{kind}.json" for kind in kinds]
    return tuple((f"ChartQA Dataset/{name}", name) for name in names)


def read(corpus: Corpus, split: str) -> Iterator[Item | Reject]:
    """Yields a would-be record per question; if one kind is absent it is skipped.

    "test_human" has only the questions of people; their records are the same as in "test".

    Raises:
      FileNotFoundError: if all kinds are absent.
    """
    split, _, only = split.partition("_")
    nested = corpus.folder / "ChartQA Dataset"
    folder = (nested if nested.is_dir() else corpus.folder) / split
    paths = {kind: folder / f"{split}_{kind}.json" for kind in ((only,) if only else KINDS)}
    present = {kind: file for kind, file in paths.items() if file.is_file()}
    if not present:
        corpus.annotation(next(iter(paths.values())))
    for kind, file in present.items():

        def make(numbered: tuple[int, dict], kind: str = kind) -> Item:
            number, row = numbered
            return question(
                BENCHMARKS["chartqa"],
                split,
                corpus.media(folder / "png" / row["imgname"]),
                f"{kind}-{number}",
                text_of(row, "query"),
                [str(row["label"])],
                image=row["imgname"],
                meta={"kind": kind},
            )

        rows = enumerate(load_list(corpus, file))
        yield from read_rows(corpus, file, f"chartqa/{split}/{kind}", rows, make)


_KIND_OF = {
    0: "human",
    1: "augmented",
    "human_test": "human",
    "augmented_test": "augmented",
}
"""Value of a table's `human_or_machine` or `type` -> kind."""


def _read_tables(corpus: Corpus, split: str, tables: Sequence[Path]) -> Iterator[Item | Reject]:
    part, _, only = split.partition("_")
    pictures, numbers = Pictures(corpus), Counter[str]()

    def make(table: Path, row: dict) -> Item | None:
        kind = _KIND_OF[row["human_or_machine"] if "human_or_machine" in row else row["type"]]
        numbers[kind] += 1
        if only and kind != only:
            return None
        label = row["label"][0] if "label" in row else row["answer"]
        media = pictures.keep(table, row["image"])
        return question(
            BENCHMARKS["chartqa"],
            part,
            media,
            f"{kind}-{numbers[kind] - 1}",
            text_of(row, "query" if "query" in row else "question"),
            [str(label)],
            meta={"kind": kind},
        )

    yield from read_tables(corpus, f"chartqa/{split}", tables, make)


SOURCES = (
    or_tables(
        of_benchmark(
            BENCHMARKS["chartqa"],
            splits=SPLITS,
            files=files,
            read=read,
            publisher="github.com/vis-nlp/ChartQA",
            whole=lambda split: split.partition("_")[0],
        ),
        {split: named(split.partition("_")[0]) for split in SPLITS},
        _read_tables,
        apart=False,
    ),
)
