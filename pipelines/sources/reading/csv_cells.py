"""Rows of a CSV table as strangers write them, or of a TSV with names of columns."""

import csv
import functools
import io
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pipelines.records.schema import BadInput
from pipelines.sources.reading.unpacking import open_lines

_MAX_CELL = 16 << 20
"""Longest cell [characters]; more is a quote that was never closed."""


def csv_cells(path: Path) -> Iterator[tuple[int, Callable[[], dict[str, str]]]]:
    """Yields each row's number, from 1, and a function that returns its cells by column.

    Empty cells are left out, and so are empty lines. The function raises BadInput for a row that is
    none, such as one with more cells than columns. A text that is not UTF-8 keeps its bytes as
    half surrogates.

    Raises:
      BadInput: if the first line is not one of column names.
      DamagedFile: if the file cannot be read to its end.
    """
    with open_lines(path) as data:
        lines, table = _open_csv_reader(path, data)
        columns = _column_names(table, lines)
        while True:
            first = table.line_num + 1
            try:
                cells = next(table, None)
            except csv.Error as error:
                reason = _csv_error_reason(error, lines, first, table.line_num)
                yield first, functools.partial(_refuse_csv_row, reason)
                continue
            if cells is None:
                return
            if cells:
                yield table.line_num, functools.partial(_cells_by_column, columns, cells)


def csv_columns(path: Path) -> list[str]:
    """Returns the column names of a table.

    Raises:
      BadInput, DamagedFile: as in `csv_cells`.
    """
    with open_lines(path) as data:
        lines, table = _open_csv_reader(path, data)
        return _column_names(table, lines)


def _open_csv_reader(path: Path, data: BinaryIO) -> tuple["Lines", Any]:
    csv.field_size_limit(_MAX_CELL)
    lines = Lines(io.TextIOWrapper(data, "utf-8", "surrogateescape", newline=""))
    # Strict: a text that begins with a quote and goes on after the next one would take what is
    # between them, cells and rows, into one cell.
    delimiter = "\t" if ".tsv" in path.name.lower() else ","
    return lines, csv.reader(lines, delimiter=delimiter, strict=True)


def _csv_error_reason(error: csv.Error, lines: "Lines", first: int, last: int) -> str:
    """Returns why lines of a table, from the first to the last, are no row."""
    if lines.at_end:  # It asked for a line after the last: a quote was still open.
        return f"a quote that is opened from line {first} on is never closed"
    if "limit" in str(error):
        return f"a cell has more than {_MAX_CELL:,} characters"
    return (
        f"lines {first} to {last} have a cell that begins with a quote and goes on after the next; "
        f"put the cell in quotes, and double those in it"
    )


def _column_names(table: Iterator[list[str]], lines: "Lines") -> list[str]:
    """Returns the first line of a table; BadInput says that it is none, or has a name twice."""
    try:
        columns = next(table, [])
    except csv.Error as error:  # More than a cell may have, because a quote is open.
        is_open = lines.at_end or "limit" in str(error)
        what = "opens a quote which is never closed; close it" if is_open else "has a stray quote"
        raise BadInput(f"must begin with a line of column names, got one that {what}") from None
    if doubled := [name for name in columns if name and columns.count(name) > 1]:
        raise BadInput(
            f"must have a column of each name, got {doubled[0]!r} more than once; rename all but "
            f"one"
        )
    return columns


class Lines(Iterator[str]):
    """The lines of a file.

    Attributes:
      at_end: whether a line was asked for after the last.
    """

    def __init__(self, file: Iterable[str]) -> None:
        self._lines, self.at_end = iter(file), False

    def __next__(self) -> str:
        try:
            return next(self._lines)
        except StopIteration:
            self.at_end = True
            raise


def _refuse_csv_row(reason: str) -> dict[str, str]:
    raise BadInput(reason)


def _cells_by_column(columns: list[str], cells: list[str]) -> dict[str, str]:
    if len(cells) > len(columns):
        raise BadInput(f"more cells than columns: {cells[len(columns) :]!r:.60}")
    return {name: cell for name, cell in zip(columns, cells, strict=False) if cell}


def parse_cell(name: str, cell: str) -> Any:
    """Returns the value of a cell that may be a list or an object: one that begins as JSON does.

    Raises:
      BadInput: if it is not JSON then: it may be a text, or a list as Python prints it.
    """
    if not cell.startswith(("[", "{")):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        text = json.dumps([cell], ensure_ascii=False)
        raise BadInput(
            f'{name} begins as JSON does and is not JSON: {cell!r:.60}; write a list as ["a", "b"] '
            f"and a text that begins so as {text:.80}"
        ) from None
