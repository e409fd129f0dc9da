"""SciCap: first sentences of the captions of scientific figures without sub-figures.

    [scicap_data/]List-of-Files-for-Each-Experiments/First-Sentence/No-Subfig/{split}/file_idx.json
    [scicap_data/]SciCap-Caption-All/{split}/{id}.json       the lower-cased, tokenised caption
    [scicap_data/]SciCap-No-Subfig-Img/{split}/{id}.png

A split's folder may begin with a capital ("Train"), as in the authors' own examples.
"""

from pathlib import Path

from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow
from pipelines.records.schema import BadInput
from pipelines.sources.benchmark_sources import published_source
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.item import Item, Listing
from pipelines.sources.reading.layout import question_item, text_under
from pipelines.sources.reading.row_files import read_file

_SCICAP = FinetuneRecipe(lr_pg1=3e-5, lr_pg2=3e-5, epochs=80, label_smoothing=0.1, dropout=0.1)

SCICAP = Benchmark(
    name="scicap",
    config="scicap",
    prompt="caption en",
    text_len=96,
    metric="cider",
    tune_split="train",
    final_split="train+val",
    eval_split="test",
    rows=(ResultRow(titles=("SciCap",), split="test", suite="main", size=13_355),),
    num_train=120_188,
    recipes={224: _SCICAP, 448: _SCICAP},
)

SPLITS = ("train", "val", "test")
CAPTION = "1-lowercase-and-token-and-remove-figure-index"
_LISTS = "List-of-Files-for-Each-Experiments/First-Sentence/No-Subfig"


def _read_scicap(corpus: Corpus, split: str, file: Path) -> Listing:
    # The list lies four folders below the root, at
    # …/First-Sentence/No-Subfig/{split}/file_idx.json.
    root = file.parents[4]
    captions = _split_folder(root / "SciCap-Caption-All", split)
    figures = _split_folder(root / "SciCap-No-Subfig-Img", split)

    def item_of_row(name: str) -> Item:
        # A name with a folder in it would read any file of the disk.
        if name != Path(name).name:
            raise BadInput(f"a figure must be a name, got {name!r}")
        # Each figure has a file with its caption, in several stages of cleaning; `CAPTION` is one.
        path = captions / f"{Path(name).stem}.json"
        if not path.is_file():
            raise BadInput(f"{corpus.relative(path)} is missing")
        row = corpus.load_json(path)
        if not isinstance(row, dict):
            raise BadInput(f"{corpus.relative(path)} must hold an object")
        caption = text_under(row[CAPTION], "caption")
        return question_item(SCICAP, split, corpus.media(figures / name), "0", "", [caption])

    yield from read_file(corpus, file, f"scicap/{split}", item_of_row)


def _split_folder(parent: Path, split: str) -> Path:
    capital = parent / split.capitalize()
    return capital if capital.is_dir() and not (parent / split).is_dir() else parent / split


def _scicap_files(split: str) -> tuple[tuple[str, ...], ...]:
    names = [f"{_LISTS}/{form}/file_idx.json" for form in (split, split.capitalize())]
    return (tuple(root + name for root in ("scicap_data/", "") for name in names),)


SOURCES = (
    published_source(
        SCICAP,
        splits=SPLITS,
        files=_scicap_files,
        read=_read_scicap,
        publisher="github.com/tingyaohsu/SciCap",
    ),
)
