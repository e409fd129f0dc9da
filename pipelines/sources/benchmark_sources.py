"""Sources of published benchmarks: annotation files as their authors lay them out, or tables.

    [{folder}/]{split}-00000-of-00002.parquet    tables as `datasets` uploads them to the Hub
    default/{split}/0000.parquet                 as the Hub converts them

A reader that supports tables uses them if its folder lacks files in the authors' layout; the same
content gives the same records. A picture that several questions ask about is stored once. If a
table gives a picture no name, its name is the start of its digest.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.benchmarks.row import Benchmark
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.item import Listing
from pipelines.sources.reading.layout import find_annotation, find_file, resolve_parents
from pipelines.sources.reading.spec import Files, SourceSpec


def benchmark_source(
    benchmark: Benchmark,
    *,
    splits: tuple[str, ...],
    files: Files,
    read: Callable[[Corpus, str], Listing],
    publisher: str,
    folder: str = "",
    containing_split: Callable[[str], str] = lambda split: split,
) -> SourceSpec:
    """Returns the source of a benchmark, which states how its pixels are prepared.

    Args:
      benchmark: the benchmark.
      splits: its splits.
      files: split -> its annotation files; some may be missing, as `read` looks for them itself.
      read: (corpus, split) -> would-be records, lazily.
      publisher: place where its authors publish it.
      folder: its default folder below the data root; "" is its name.
      containing_split: split -> the split that contains it.
    """
    # Only of videos: a benchmark of images leaves the spec's own defaults.
    frames: dict[str, Any] = {
        "num_frames": benchmark.num_frames,
        "frame_stride": benchmark.frame_stride,
    }
    return SourceSpec(
        name=benchmark.name,
        folder=folder or benchmark.name,
        splits=splits,
        read=read,
        # "train" filters training images only; "always" those of evaluation too.
        antialias=benchmark.antialias != "never",
        antialias_eval=benchmark.antialias == "always",
        files=files,
        publisher=publisher,
        containing_split=containing_split,
        has_clips=bool(benchmark.num_frames),
        benchmark=benchmark,
        **(frames if benchmark.num_frames else {}),
    )


def published_source(
    benchmark: Benchmark,
    *,
    splits: tuple[str, ...],
    files: Files,
    read: Callable[..., Listing],
    publisher: str,
    folder: str = "",
    containing_split: Callable[[str], str] = lambda split: split,
    tables: Mapping[str, Sequence[str]] | None = None,
    per_table: bool = True,
) -> SourceSpec:
    """Returns the source of a benchmark that is read from fixed annotation files.

    As `benchmark_source`, but `read` gets (corpus, split, path of each file), or (corpus, split,
    list of tables) if there are tables instead; `tables` and `per_table` are those of
    `with_tables`. A missing file is an error before anything is read.
    """

    def read_files(corpus: Corpus, split: str) -> Listing:
        yield from read(corpus, split, *[find_annotation(corpus, *names) for names in files(split)])

    spec = benchmark_source(
        benchmark,
        splits=splits,
        files=files,
        read=read_files,
        publisher=publisher,
        folder=folder,
        containing_split=containing_split,
    )
    return with_tables(spec, tables, read, per_table=per_table) if tables else spec


def table_patterns(*splits: str, folders: Sequence[str] = ("data", ".")) -> tuple[str, ...]:
    """Returns the name patterns that the tables of a split may have, in order of preference.

    Args:
      splits: names of the split on the Hub, for example "validation".
      folders: folders of the tables below the source's folder.
    """
    uploaded = [f"{folder}/{split}-*.parquet" for folder in folders for split in splits]
    return tuple(uploaded + [f"default/{split}/*.parquet" for split in splits])


def with_tables(
    spec: SourceSpec,
    tables: Mapping[str, Sequence[str]],
    read: Callable[[Corpus, str, list[Path]], Listing],
    *,
    per_table: bool = True,
) -> SourceSpec:
    """Returns a source that can also be read from tables.

    Args:
      spec: the source in its authors' layout.
      tables: split -> name patterns of its tables; the first pattern that matches is used.
      read: (corpus, split, tables) -> would-be records, lazily.
      per_table: whether each table can be listed separately: `read` gives the same items for a
        table whether or not it gets the others, and reads nothing else.
    """

    # The authors' files win if all are there; tables count only in their absence.
    def tables_of(corpus: Corpus, split: str) -> list[Path]:
        published = all(find_file(corpus.folder, *names) for names in spec.files(split))
        return [] if published else find_tables(corpus, tables.get(split, ()))

    def read_files_or_tables(corpus: Corpus, split: str) -> Listing:
        present = tables_of(corpus, split)
        yield from read(corpus, split, present) if present else spec.read(corpus, split)

    def files(split: str) -> tuple[tuple[str, ...], ...]:
        return tuple((*names, *tables.get(split, ())) for names in spec.files(split))

    def units(corpus: Corpus, split: str) -> Iterator[str]:
        # A table is a unit; without tables, the whole split is one.
        numbers = range(len(tables_of(corpus, split)))
        yield from (f"{split} {number}" for number in numbers) if numbers else [""]

    def table_of_unit(corpus: Corpus, unit: str) -> tuple[str, Path]:
        split, _, number = unit.rpartition(" ")
        return split, tables_of(corpus, split)[int(number)]

    def list_unit(corpus: Corpus, unit: str) -> Listing:
        split, table = table_of_unit(corpus, unit)
        return read(corpus, split, [table])

    # Units are named "{split} {number of the table}"; the list of tables is looked up again for
    # each, as workers on other machines get nothing but the name.
    table_units: dict[str, Any] = {
        "units": units,
        "list_unit": list_unit,
        "unit_files": lambda corpus, unit: [table_of_unit(corpus, unit)[1]],
    }
    return dataclasses.replace(
        spec, read=read_files_or_tables, files=files, **(table_units if per_table else {})
    )


def find_tables(corpus: Corpus, names: Iterable[str]) -> list[Path]:
    """Returns the files, sorted, that match the first of `names` with any match."""
    for name in names:
        path = resolve_parents(corpus.folder, name)
        if tables := sorted(path.parent.glob(path.name)):
            return tables
    return []
