"""MaRVL: sentences about two images, in five languages.

    marvl-annotations/marvl-{id,sw,ta,tr,zh}.jsonl  id, caption, concept, left_img, right_img, label
    marvl-images/{lang}/images/[{concept}/]{file}

The authors' repository has the texts as data/{lang}/annotations/marvl-{lang}.jsonl.
"""

from pathlib import Path

from pipelines.benchmarks.pairs import BENCHMARKS, MARVL_SIZES
from pipelines.records.schema import BadInput
from pipelines.sources.corpus import Corpus
from pipelines.sources.item import Item
from pipelines.sources.layout import Found, json_lines, question, read_rows, text_of
from pipelines.sources.pairs.nlvr import LABELS
from pipelines.sources.spec import published


def _read(corpus: Corpus, split: str, file: Path) -> Found:
    folder = corpus.folder / "marvl-images" / split / "images"

    def make(line) -> Item:
        row = line()
        label = LABELS.get(str(row["label"]).lower())
        if label is None:
            raise BadInput(f"label must be true or false, got {row['label']!r}")
        concept = folder / text_of(row, "concept")
        names = text_of(row, "left_img"), text_of(row, "right_img")
        place = concept if concept.is_dir() else folder
        pair = tuple(corpus.media(place / name) for name in names)
        return question(
            BENCHMARKS["marvl"],
            split,
            pair,
            row["id"],
            text_of(row, "caption"),
            [label],
            lang=split,
            image="+".join(names),
            meta={"identifier": row["id"], "concept": row["concept"]},
        )

    yield from read_rows(corpus, file, f"marvl/{split}", json_lines(file), make)


SOURCES = (
    published(
        BENCHMARKS["marvl"],
        splits=tuple(MARVL_SIZES),
        files=lambda lang: (
            (
                f"marvl-annotations/marvl-{lang}.jsonl",
                f"data/{lang}/annotations/marvl-{lang}.jsonl",
            ),
        ),
        read=_read,
        publisher="marvl-challenge.github.io/download",
    ),
)
