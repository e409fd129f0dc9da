"""Reading of benchmarks from the Hugging Face Hub: parquet tables that contain the pictures.

    [{folder}/]{split}-00000-of-00002.parquet    as `datasets` uploads them
    default/{split}/0000.parquet                 as the Hub converts them

A reader that supports tables uses them if its folder lacks files in the authors' layout; the same
content gives the same records. A picture that several questions ask about is stored once. If a
table gives a picture no name, its name is the start of its digest.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.records.schema import BadInput
from pipelines.sources.corpus import Corpus
from pipelines.sources.item import Item, Media
from pipelines.sources.layout import Found, below, look_up, read_rows
from pipelines.sources.spec import SourceSpec

_BATCH = 64
"""Rows read at a time; a scanned page has some megabytes."""

ReadTables = Callable[[Corpus, str, Sequence[Path]], Found]


def named(*splits: str, folders: Sequence[str] = ("data", ".")) -> tuple[str, ...]:
    """Returns the name patterns that the tables of a split may have, in order of preference.

    Args:
      splits: names of the split on the Hub, for example "validation".
      folders: folders of the tables below the source's folder.
    """
    uploaded = [f"{folder}/{split}-*.parquet" for folder in folders for split in splits]
    return tuple(uploaded + [f"default/{split}/*.parquet" for split in splits])


def or_tables(
    spec: SourceSpec,
    tables: Mapping[str, Sequence[str]],
    read: ReadTables,
    *,
    apart: bool = True,
) -> SourceSpec:
    """Returns a source that can also be read from tables.

    Args:
      spec: the source in its authors' layout.
      tables: split -> name patterns of its tables; the first pattern that matches is used.
      read: (corpus, split, tables) -> would-be records, lazily.
      apart: whether each table can be listed separately: `read` gives the same items for a table
        whether or not it gets the others, and reads nothing else.
    """

    # The authors' files win if all are there; tables count only in their absence.
    def found_of(corpus: Corpus, split: str) -> list[Path]:
        published = all(look_up(corpus.folder, *names) for names in spec.files(split))
        return [] if published else find_tables(corpus, tables.get(split, ()))

    def read_either(corpus: Corpus, split: str) -> Found:
        found = found_of(corpus, split)
        yield from read(corpus, split, found) if found else spec.read(corpus, split)

    def files(split: str) -> tuple[tuple[str, ...], ...]:
        return tuple((*names, *tables.get(split, ())) for names in spec.files(split))

    def units(corpus: Corpus, split: str) -> Iterator[str]:
        there = range(len(found_of(corpus, split)))
        yield from (f"{split} {number}" for number in there) if there else [""]

    def of_unit(corpus: Corpus, unit: str) -> tuple[str, Path]:
        split, _, number = unit.rpartition(" ")
        return split, found_of(corpus, split)[int(number)]

    def read_one(corpus: Corpus, unit: str) -> Found:
        split, table = of_unit(corpus, unit)
        return read(corpus, split, [table])

    read_apart: dict[str, Any] = {
        "units": units,
        "read_one": read_one,
        "own_files": lambda corpus, unit: [of_unit(corpus, unit)[1]],
    }
    return dataclasses.replace(spec, read=read_either, files=files, **(read_apart if apart else {}))


def find_tables(corpus: Corpus, names: Iterable[str]) -> list[Path]:
    """Returns the files, sorted, that match the first of `names` with any match."""
    for name in names:
        path = below(corpus.folder, name)
        if found := sorted(path.parent.glob(path.name)):
            return found
    return []


def read_tables(
    corpus: Corpus,
    name: str,
    tables: Iterable[Path],
    make: Callable[[Path, dict[str, Any]], Item | Iterable[Item] | None],
    *,
    columns: Sequence[str] = (),
) -> Found:
    """Yields the items that `make` returns for each row, or a reject if it fails.

    Args:
      corpus: the tables' corpus.
      name: prefix of the ids of rejects, for example "docvqa/val".
      tables: the tables, in the order in which they are read.
      make: (table, one row of it) -> its items; None if the row is not an input.
      columns: columns to read; empty reads all.
    """
    for table in tables:
        rows = table_rows(corpus, table, columns)
        of_table = functools.partial(make, table)
        yield from read_rows(corpus, table, f"{name}/{table.stem}", rows, of_table)


def table_rows(
    corpus: Corpus, table: Path, columns: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yields the rows of a table; memory holds a few at a time.

    Raises:
      ValueError: if it is not a parquet file, naming the file.
    """
    import pyarrow as pa
    from pyarrow import parquet

    with corpus.whole(table) as local:
        try:
            with parquet.ParquetFile(local) as file:
                there = file.schema_arrow.names
                known = [name for name in there if not columns or name in columns]
                for batch in file.iter_batches(_BATCH, columns=known):
                    yield from batch.to_pylist()
        except (pa.ArrowException, OSError) as error:
            told = " ".join(str(error).split())[:120]
            raise ValueError(f"{table} is damaged parquet: {told}.") from error


class Pictures:
    """Stores the pictures of tables in the spool, equal ones once."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._kept: dict[tuple[bytes, str], Media] = {}

    def keep(self, table: Path, cell: object, name: str = "", **fields: Any) -> Media:
        """Stores a picture, if it is new, and returns a reference to it.

        Args:
          table: the table that holds the picture.
          cell: its bytes, or {"bytes", "path"} as `datasets` writes pictures.
          name: file name in the authors' layout; "" takes the cell's path or the digest.
          fields: further fields of `Media`.

        Raises:
          BadInput: if the cell holds no picture.
        """
        path = ""
        if isinstance(cell, Mapping):
            cell, path = cell.get("bytes"), str(cell.get("path") or "")
        if not isinstance(cell, bytes) or not cell:
            raise BadInput("row has no picture")
        digest = hashlib.sha256(cell)
        name = name or Path(path).name or digest.hexdigest()[:16]
        media = self._kept.get((digest.digest(), name))
        if media is None:
            place: dict[str, Any] = self._corpus.spool.put(cell)
            media = Media(path=self._corpus.relative(table), member=name, **place)
            self._kept[digest.digest(), name] = media
        return dataclasses.replace(media, **fields) if fields else media


def texts(cells: object) -> list[object]:
    """Returns the texts of answers, each of which may be a text or {"answer": text, ...}."""
    listed = cells if isinstance(cells, list) else []
    return [cell["answer"] if isinstance(cell, Mapping) else cell for cell in listed]
