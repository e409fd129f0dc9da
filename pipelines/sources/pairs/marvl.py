"""MaRVL: sentences about two images, in five languages.

    marvl-annotations/marvl-{id,sw,ta,tr,zh}.jsonl  id, caption, concept, left_img, right_img, label
    marvl-images/{lang}/images/[{concept}/]{file}

The authors' repository has the texts as data/{lang}/annotations/marvl-{lang}.jsonl.
"""

from pathlib import Path

from pipelines.benchmarks.row import ResultRow, zero_shot
from pipelines.records.schema import BadInput
from pipelines.sources.benchmark_sources import published_source
from pipelines.sources.pairs.nlvr import LABELS, NLVR
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.item import Item, Listing
from pipelines.sources.reading.layout import question_item, text_under
from pipelines.sources.reading.row_files import read_file

MARVL_SIZES = {"id": 1_128, "sw": 1_108, "ta": 1_242, "tr": 1_180, "zh": 1_012}
"""Number of sentences per language."""

MARVL = zero_shot(
    NLVR,
    name="marvl",
    eval_split="+".join(MARVL_SIZES),
    rows=(
        ResultRow(
            titles=("MaRVL",),
            split="id",
            averaged=("sw", "ta", "tr", "zh"),
            suite="main",
            size=sum(MARVL_SIZES.values()),
            resolutions=(),
        ),
    ),
)


def _read_marvl(corpus: Corpus, split: str, file: Path) -> Listing:
    folder = corpus.folder / "marvl-images" / split / "images"

    def item_of_row(row: dict) -> Item:
        # "TRUE" and "true" are the same label; anything else is a reject.
        label = LABELS.get(str(row["label"]).lower())
        if label is None:
            raise BadInput(f"label must be true or false, got {row['label']!r}")
        concept = folder / text_under(row, "concept")
        names = text_under(row, "left_img"), text_under(row, "right_img")
        # Pictures lie in a folder per concept, or all in one.
        place = concept if concept.is_dir() else folder
        pair = tuple(corpus.media(place / name) for name in names)
        return question_item(
            MARVL,
            split,
            pair,
            row["id"],
            text_under(row, "caption"),
            [label],
            lang=split,
            image="+".join(names),
            meta={"identifier": row["id"], "concept": row["concept"]},
        )

    yield from read_file(corpus, file, f"marvl/{split}", item_of_row, form="lines")


SOURCES = (
    published_source(
        MARVL,
        splits=tuple(MARVL_SIZES),
        files=lambda lang: (
            (
                f"marvl-annotations/marvl-{lang}.jsonl",
                f"data/{lang}/annotations/marvl-{lang}.jsonl",
            ),
        ),
        read=_read_marvl,
        publisher="marvl-challenge.github.io/download",
    ),
)
