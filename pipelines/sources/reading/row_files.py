"""Reading of annotation files, whatever their format, row by row."""

import csv
import io
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pipelines.records.nearest import with_nearest
from pipelines.records.reasons import kind_of, reason_of
from pipelines.records.schema import BadInput, Reject
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.csv_cells import Lines
from pipelines.sources.reading.hub import table_rows
from pipelines.sources.reading.item import Item, Listing
from pipelines.sources.reading.unpacking import DamagedFile, open_lines
from pipelines.sources.reading.values import parse_row

Value = TypeVar("Value", list, dict)

Form = Literal["list", "dict", "csv", "table", "lines"]

_MALFORMED = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    RecursionError,
    OverflowError,
)


def load_list(
    corpus: Corpus, path: Path, key: str = "", *, compact: Callable[[dict], object] | None = None
) -> list:
    """Returns the list in a JSON file, or under `key` in it.

    Args:
      corpus: the corpus, which notes the file.
      path: the file.
      key: key of the list in the file; "" if the file is the list.
      compact: function that replaces every object as it is parsed, innermost first.

    Raises:
      ValueError: if there is no list, naming the file.
    """
    return value_under_key(path, corpus.load_json(path, compact), key, list)


def load_dict(corpus: Corpus, path: Path, key: str = "") -> dict:
    """Returns the object in a JSON file, or under `key` in it.

    Raises:
      ValueError: if there is no object, naming the file.
    """
    return value_under_key(path, corpus.load_json(path), key, dict)


def value_under_key(path: Path, content: Any, key: str, kind: type[Value]) -> Value:
    """Returns the list or the object under a key of a file's content; "" is the content itself.

    Raises:
      ValueError: if there is none, naming the file.
    """
    description = "a list" if kind is list else "an object"
    if key:
        if not isinstance(content, dict) or key not in content:
            raise ValueError(f"{path} must hold {description} under {key!r}.")
        content = content[key]
    if not isinstance(content, kind):
        under = f" under {key!r}" if key else " of rows"
        raise ValueError(f"{path} must hold {description}{under}, got {kind_of(content)}.")
    return content


def index_rows(path: Path, rows: Iterable[Any], key: str) -> dict[Any, Any]:
    """Returns the rows of a file as a dict, indexed by their values under `key`.

    A row without a text or a number under `key` is left out: what it should have been joined to is
    then a reject, as it finds no row.

    Raises:
      ValueError: if there are rows and all are left out, naming the file.
    """
    row_of, listed = {}, list(rows)
    for row in listed:
        if isinstance(row, Mapping) and isinstance(row.get(key), str | int):
            row_of[row[key]] = row
    if listed and not row_of:
        raise ValueError(f"{path}: none of {len(listed)} rows has {key!r}.")
    return row_of


def group_rows(rows: Iterable[Any], key: str) -> list[list[Any]]:
    """Groups rows by their value under `key`, in order of appearance; rows without it are alone."""
    groups: dict[object, list[Any]] = {}
    # A row without the key, or of another kind, is a group of its own: it becomes a reject later.
    for number, row in enumerate(rows):
        shared = row.get(key) if isinstance(row, Mapping) else None
        groups.setdefault(("alone", number) if shared is None else str(shared), []).append(row)
    return list(groups.values())


def json_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file that hold anything; the file may be packed."""
    with open_lines(path) as lines:
        yield from (line for line in lines if line.strip())


def csv_rows(path: Path, *columns: str) -> Iterator[dict[str, str]]:
    """Yields the rows of a table; tabs are between the cells of a .tsv.

    What a row has beyond the columns is under None, as the standard library has it.

    Raises:
      ValueError: if a column is missing, naming the file.
      DamagedFile: at a quote that is never closed, whose cell would be the rest of the file.
    """
    csv.field_size_limit(sys.maxsize)  # A long cell is no reason to end.
    delimiter = "\t" if ".tsv" in path.suffixes else ","
    with open_lines(path) as lines:
        text = Lines(io.TextIOWrapper(lines, "utf-8", "surrogateescape", newline=""))
        reader = csv.DictReader(text, delimiter=delimiter)
        names = reader.fieldnames or ()
        if missing := [name for name in columns if name not in names]:
            raise ValueError(
                f"{path} lacks the column{'s' * (len(missing) > 1)} "
                f"{', '.join(map(repr, missing))}; it has {with_nearest(names, columns)}."
            )
        for row in reader:
            if text.at_end:  # It asked for a line after the last.
                raise DamagedFile(path.name, "a quote is opened and never closed")
            yield row


def read_file(
    corpus: Corpus,
    file: Path | list[Path],
    name: str,
    items_of_row: Callable[[Any], Item | Iterable[Item | Reject] | None],
    *,
    form: Form = "list",
    key: str = "",
    group_by: str = "",
    columns: Sequence[str] = (),
) -> Listing:
    """Yields the items that `items_of_row` returns for each row of a file, whatever its format.

    A list of tables stands for the file; `items_of_row` then gets a `TableRow` for each row.

    Args:
      corpus: the file's corpus.
      file: the file, or the tables.
      name: prefix of the ids of rejects, for example "docvqa/val".
      items_of_row: as in `read_rows`.
      form: layout of a file that is not a list of tables: JSON list, JSON object whose (key, value)
        pairs are the rows, JSON lines, CSV or a single table.
      key: key of the list in a JSON file; "" if the file is the list.
      group_by: key whose equal values make several rows one, a list; "" groups none. Tables have a
        row for such a group.
      columns: columns that CSV must have, or that are read of tables; empty reads all.
    """
    # Each table counts its rows anew, so the table's name goes into the ids of rejects.
    if isinstance(file, list):
        for table in file:
            rows = table_rows(corpus, table, columns)
            yield from read_rows(corpus, table, f"{name}/{table.stem}", rows, items_of_row)
        return
    match form:
        case "list":
            rows = load_list(corpus, file, key)
            rows = group_rows(rows, group_by) if group_by else rows
        case "dict":
            rows = load_dict(corpus, file, key).items()
        case "csv":
            rows = csv_rows(file, *columns)
        case "table":
            rows = table_rows(corpus, file, columns)
        case "lines":
            # Parsed within `read_rows`, where a malformed line is a reject and not an error.
            yield from read_rows(
                corpus, file, name, json_lines(file), lambda line: items_of_row(parse_row(line))
            )
            return
    yield from read_rows(corpus, file, name, rows, items_of_row)


def read_rows(
    corpus: Corpus,
    path: Path,
    name: str,
    rows: Iterable[Any],
    items_of_row: Callable[[Any], Item | Iterable[Item | Reject] | None],
) -> Listing:
    """Yields the items that `items_of_row` returns for each row, or a reject if it fails.

    Args:
      corpus: the rows' corpus.
      path: the file that holds the rows.
      name: prefix of the ids of rejects, for example "docvqa/val".
      rows: the rows.
      items_of_row: one row -> its items, or None if the row is not an input; it need not catch the
        errors that a malformed row causes.
    """
    # A bad row costs one reject, never the file. Items are made before any is yielded, so that a
    # row gives all of its items or none.
    remaining = iter(rows)
    for number in itertools.count():
        try:
            row = next(remaining)
        except StopIteration:
            return
        except DamagedFile as error:
            yield _reject_annotation_row(corpus, path, f"{name}/{path.name}", error.after(number))
            return
        try:
            check_width(row)
            result = items_of_row(row)
            items = [result] if isinstance(result, Item) else list(result or ())
        except BadInput as error:
            yield _reject_annotation_row(corpus, path, f"{name}/row-{number}", str(error))
        except _MALFORMED as error:
            reason = f"malformed row: {reason_of(error, row)}"
            yield _reject_annotation_row(corpus, path, f"{name}/row-{number}", reason)
        else:
            yield from items


def check_width(row: Any) -> None:
    """Checks that a row of `csv_rows`, or each in a list of them, is no longer than the first line.

    Raises:
      BadInput: if it is.
    """
    for cells in row if isinstance(row, list) else [row]:
        if isinstance(cells, Mapping) and any(cells.get(None) or ()):
            raise BadInput(f"more cells than columns: {cells[None]!r:.60}")


def _reject_annotation_row(corpus: Corpus, path: Path, identity: str, reason: str) -> Reject:
    return Reject(id=identity, stage="read", reason=reason, source=corpus.relative(path))
