"""SciCap: first sentences of the captions of scientific figures without sub-figures.

    [scicap_data/]List-of-Files-for-Each-Experiments/First-Sentence/No-Subfig/{split}/file_idx.json
    [scicap_data/]SciCap-Caption-All/{split}/{id}.json       the lower-cased, tokenised caption
    [scicap_data/]SciCap-No-Subfig-Img/{split}/{id}.png

A split's folder may begin with a capital ("Train"), as in the authors' own examples.
"""

from pathlib import Path

from pipelines.benchmarks.captions import BENCHMARKS
from pipelines.records.schema import BadInput
from pipelines.sources.corpus import Corpus
from pipelines.sources.item import Item
from pipelines.sources.layout import Found, load_list, question, read_rows, text_of
from pipelines.sources.spec import published

SPLITS = ("train", "val", "test")
CAPTION = "1-lowercase-and-token-and-remove-figure-index"
_LISTS = "List-of-Files-for-Each-Experiments/First-Sentence/No-Subfig"


def _read(corpus: Corpus, split: str, file: Path) -> Found:
    root = file.parents[4]
    captions = _split_folder(root / "SciCap-Caption-All", split)
    figures = _split_folder(root / "SciCap-No-Subfig-Img", split)

    def make(name: str) -> Item:
        if name != Path(name).name:
            raise BadInput(f"a figure must be a name, got {name!r}")
        path = captions / f"{Path(name).stem}.json"
        if not path.is_file():
            raise BadInput(f"{corpus.relative(path)} is missing")
        row = corpus.load_json(path)
        if not isinstance(row, dict):
            raise BadInput(f"{corpus.relative(path)} must hold an object")
        caption = text_of(row[CAPTION], "caption")
        return question(
            BENCHMARKS["scicap"], split, corpus.media(figures / name), "0", "", [caption]
        )

    rows = load_list(corpus, file)
    yield from read_rows(corpus, file, f"scicap/{split}", rows, make)


def _split_folder(parent: Path, split: str) -> Path:
    capital = parent / split.capitalize()
    return capital if capital.is_dir() and not (parent / split).is_dir() else parent / split


def _files(split: str) -> tuple[tuple[str, ...], ...]:
    names = [f"{_LISTS}/{form}/file_idx.json" for form in (split, split.capitalize())]
    return (tuple(root + name for root in ("scicap_data/", "") for name in names),)


SOURCES = (
    published(
        BENCHMARKS["scicap"],
        splits=SPLITS,
        files=_files,
        read=_read,
        publisher="github.com/tingyaohsu/SciCap",
    ),
)
