"""NLVR and NLVR2: whether a sentence is true of the images.

    NLVR    [nlvr/]{split}/{split}.json     JSON lines: identifier, sentence, label, directory
            [nlvr/]{split}/images/{directory}/{split}-{identifier}-{0..5}.png
    NLVR2   [nlvr2/]data/{split}.json       JSON lines: identifier, sentence, label[, directory]
            [nlvr2/]images/{split}/[{directory}/]{identifier without its last field}-img{0,1}.png
            its test split is "test1"

An NLVR row has six permutations of one drawing with the same label; they make three pairs.
Published by their authors at github.com/lil-lab/nlvr (CC BY 4.0).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow
from pipelines.sources.benchmark_sources import benchmark_source
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.item import Item, Listing
from pipelines.sources.reading.row_files import read_file
from pipelines.sources.reading.values import text_of

NLVR = Benchmark(
    name="nlvr",
    config="nlvr2",
    prompt="answer en {text}",
    text_len=64,
    metric="nlvr",
    tune_split="train",
    final_split="train+dev",
    eval_split="test",
    rows=(ResultRow(titles=("NLVR2",), split="test", suite="main", size=6_967),),
    num_train=93_355,
    recipes={
        224: FinetuneRecipe(lr_pg1=1e-5, lr_pg2=6e-6, decay=True, epochs=3),
        448: FinetuneRecipe(lr_pg1=3e-6, lr_pg2=6e-6, decay=True, epochs=10),
    },
)

SPLITS = ("train", "dev", "test")
LABELS = {"true": "True", "false": "False"}
"""Published label in lower case -> target and answer."""


def read_nlvr(corpus: Corpus, split: str) -> Listing:
    """Yields a would-be record per image pair of every row."""
    # NLVR's rows name three pairs each, NLVR2's one; the layout knows where they lie.
    file, layout = _find_nlvr(corpus, split)

    def items_of_row(row: Mapping) -> Iterator[Item]:
        label, sentence = LABELS[str(row["label"]).lower()], text_of(row["sentence"], "sentence")
        for name, pair in layout(file, split, row):
            yield Item(
                id=f"nlvr/{split}/{name}",
                part="nlvr",
                media=tuple(corpus.media(image) for image in pair),
                prefix=NLVR.prefix(sentence),
                fields={"text": sentence},
                suffixes=(label,),
                task="nlvr",
                answers=(label,),
                meta={"identifier": row["identifier"]},
            )

    yield from read_file(
        corpus, corpus.annotation(file), f"nlvr/{split}", items_of_row, form="lines"
    )


def nlvr_files(split: str) -> tuple[tuple[str, ...], ...]:
    """Returns the annotation file of a split as a tuple of its possible names, NLVR2's first."""
    return (tuple(_nlvr2_names(split) + _nlvr1_names(split)),)


def _nlvr1_names(split: str) -> list[str]:
    return [f"{sub}{split}/{split}.json" for sub in ("", "nlvr/")]


def _nlvr2_names(split: str) -> list[str]:
    name = {"test": "test1"}.get(split, split)
    return [f"{sub}data/{name}.json" for sub in ("", "nlvr2/", "nlvr/nlvr2/")]


def _find_nlvr(corpus: Corpus, split: str):
    """Returns the split's file and the function that names its images."""
    first, second = _nlvr1_names(split), _nlvr2_names(split)
    for names, layout in ((first, _nlvr1_pairs), (second, _nlvr2_pair)):
        for name in names:
            if (corpus.folder / name).is_file():
                return corpus.folder / name, layout
    raise FileNotFoundError(
        f"{corpus.folder / first[0]} is missing, and there is no {second[0]} either."
    )


def _nlvr1_pairs(file: Path, split: str, row: Mapping) -> Iterator[tuple[str, list[Path]]]:
    identifier, folder = str(row["identifier"]), file.parent / "images" / str(row["directory"])
    for i in (0, 2, 4):
        images = [folder / f"{split}-{identifier}-{k}.png" for k in (i, i + 1)]
        yield f"{identifier}-{i}{i + 1}", images


def _nlvr2_pair(file: Path, split: str, row: Mapping) -> Iterator[tuple[str, list[Path]]]:
    stem = str(row["identifier"]).rpartition("-")[0]
    folder = file.parent.parent / "images" / file.stem
    if "directory" in row and (folder / str(row["directory"])).is_dir():
        folder /= str(row["directory"])
    yield str(row["identifier"]), [folder / f"{stem}-img{k}.png" for k in (0, 1)]


SOURCES = (
    benchmark_source(
        NLVR,
        splits=SPLITS,
        files=nlvr_files,
        read=read_nlvr,
        publisher="github.com/lil-lab/nlvr",
    ),
)
