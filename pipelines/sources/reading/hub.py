"""Tables of the Hugging Face Hub: parquet files whose rows hold their pictures."""

import ast
import base64
import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from pipelines.records.schema import BadInput
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.item import Media
from pipelines.sources.reading.values import is_absent

_BATCH = 64
"""Rows read at a time; a scanned page has some megabytes."""

_BASE64_HEADS = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR", "SUkqA", "TU0AK")
"""Base64 of the first bytes of PNG, JPEG, GIF, WebP and TIFF."""

_WIDTHS = {"float": np.float32, "halffloat": np.float16}
"""Arrow's name of a float of fewer than 64 bits -> NumPy's kind, which prints what was written."""

_SHORTEST = 32
"""Paths that begin like one of these are shorter [characters]."""


class TableRow(dict[str, Any]):
    """A row of a table, unlike the authors' files, which only name their pictures."""

    def __init__(self, table: Path, cells: Mapping[str, Any]) -> None:
        super().__init__(cells)
        self.table = table


def table_rows(corpus: Corpus, table: Path, columns: Sequence[str] = ()) -> Iterator[TableRow]:
    """Yields the rows of a table; memory holds a few at a time.

    Raises:
      ValueError: if it is not a parquet file, naming the file.
    """
    import pyarrow as pa
    from pyarrow import parquet

    with corpus.local_annotation(table) as local:
        try:
            with parquet.ParquetFile(local) as file:
                names = column_names(file.schema_arrow.names)
                wanted = [name for name in names if not columns or name in columns]
                for batch in file.iter_batches(_BATCH, columns=wanted):
                    for cells in rows_of_batch(batch):
                        yield TableRow(table, cells)
        except BadInput as error:
            raise ValueError(f"{table}: {error}.") from error
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _damaged_parquet_error(table, error) from error


def _damaged_parquet_error(table: Path, error: Exception) -> ValueError:
    reason = " ".join(str(error).split())[:120]
    return ValueError(f"{table} is damaged parquet: {reason}.")


def column_names(names: Sequence[str]) -> Sequence[str]:
    """Returns the names of a table's columns.

    Raises:
      BadInput: if two columns have the same name: a row would have either's cell.
    """
    if doubled := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"several columns are called {doubled[0]!r}; rename all but one")
    return names


def rows_of_batch(batch: Any, *, named: bool = False) -> list[dict[str, Any]]:
    """Returns the rows of a batch of Arrow's; a text that is not UTF-8 stays bytes.

    Args:
      batch: the batch.
      named: whether classes of `datasets` are their names; else they are numbers, as stored.
    """
    try:
        rows = batch.to_pylist()
    except ValueError:  # One odd cell among all the rows, which are taken one by one.
        rows = [
            {
                name: _parquet_cell_value(column[number])
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }
            for number in range(batch.num_rows)
        ]
    features = _features_of(batch.schema) if named else {}
    for field in batch.schema:
        feature = features.get(field.name)
        if "float" in str(field.type) or "ClassLabel" in str(feature):  # 64 bits: double
            for row in rows:
                row[field.name] = _as_written(row[field.name], field.type, feature)
    return rows


def _features_of(schema: Any) -> dict[str, Any]:
    """Returns column -> its feature, which `datasets` writes into the schema; {} without."""
    # A sequence of objects is an object of lists, so sequences are no part of the way to a class.
    with contextlib.suppress(ValueError, TypeError, KeyError):
        note = json.loads(schema.metadata[b"huggingface"], object_hook=_list_element_feature)
        return dict(note["info"]["features"])
    return {}


def _list_element_feature(feature: dict[str, Any]) -> Any:
    return feature["feature"] if {"_type", "feature"} <= feature.keys() else feature


def _as_written(value: Any, kind: Any, feature: Any = None) -> Any:
    """Returns a cell of one of Arrow's types with the numbers and classes that were written.

    Maps stay: no field that is one holds numbers.
    """
    feature = next(iter(feature), None) if isinstance(feature, list) else feature
    fields = feature if isinstance(feature, dict) else {}
    kind = getattr(kind, "value_type", kind)  # Of a list or a dictionary.
    if isinstance(value, list):
        return [_as_written(each, kind, feature) for each in value]
    if isinstance(value, dict) and hasattr(kind, "get_field_index"):
        return {f.name: _as_written(value[f.name], f.type, fields.get(f.name)) for f in kind}
    if type(value) is int and fields.get("_type") == "ClassLabel":
        names = fields.get("names") or []
        return names[value] if 0 <= value < len(names) else None if value < 0 else value
    width, number = _WIDTHS.get(str(kind)), cast(Any, value)
    # The fewest digits of a float16 of 16384 are those of 16380; to a float32 alone belongs 1e16.
    if not width or value is None or (width is np.float16 and float(number).is_integer()):
        return value
    return float(str(width(number)))


def _parquet_cell_value(scalar: Any) -> Any:
    """Returns the value of a cell; bytes if it is no text, None if it is nothing else either."""
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes() if hasattr(scalar, "as_buffer") else None
    except ValueError:  # A date beyond Python's years, for one.
        return None


def count_rows(corpus: Corpus, table: Path) -> int:
    """Returns the number of rows of a table."""
    import pyarrow as pa
    from pyarrow import parquet

    with corpus.local_annotation(table) as local:
        try:
            return parquet.read_metadata(local).num_rows
        except (pa.ArrowException, OSError) as error:
            raise _damaged_parquet_error(table, error) from error


class TablePictures:
    """Stores the pictures of tables in the corpus's `unpacked`, equal ones once."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._stored: dict[tuple[bytes, str], Media] = {}

    def store(self, row: TableRow, name: str = "", **fields: Any) -> Media:
        """Stores the picture in a row's cell "image", if it is new, and returns a reference to it.

        Args:
          row: the row; its cell is as in `picture_cell`.
          name: file name in the authors' layout; "" takes the cell's path or the digest.
          fields: further fields of `Media`.

        Raises:
          BadInput: if the cell holds no picture.
        """
        data, path = picture_cell(row["image"], "image")
        if not data:
            if not path:
                raise BadInput("row has no picture")
            return self._corpus.media(row.table.parent / path, **fields)
        digest = hashlib.sha256(data)
        name = name or Path(path).name or digest.hexdigest()[:16]
        # The name is part of the key: it becomes part of the records' ids.
        media = self._stored.get((digest.digest(), name))
        if media is None:
            place: dict[str, Any] = self._corpus.unpacked.append(data)
            media = Media(path=self._corpus.relative(row.table), member=name, **place)
            self._stored[digest.digest(), name] = media
        return dataclasses.replace(media, **fields) if fields else media


def picture_cell(cell: object, field: str) -> tuple[bytes, str]:
    """Returns the bytes of the picture in a cell, and the path or URL of its file.

    Args:
      cell: bytes (also as base64, as a data URI or as a list of numbers), a path,
        {"bytes", "path"} as `datasets` writes pictures, or a list of one of these. With bytes, a
        path is only the name that they once had.
      field: name of the cell.

    Returns:
      The bytes and the path; both are empty if the cell is.

    Raises:
      BadInput: if the cell holds anything else, naming the field.
    """
    if isinstance(cell, list | tuple) and len(cell) > 1 and all(map(_is_byte, cell)):
        cell = bytes(cell)
    if isinstance(cell, list | tuple) and len(cell) > 1:
        raise BadInput(f"{field} lists {len(cell)} files, one is expected")
    if isinstance(cell, list | tuple):
        cell = cell[0] if cell else None
    data, path = (None, cell) if isinstance(cell, str) else (cell, None)
    if isinstance(cell, Mapping) and (not cell or cell.keys() & {"bytes", "path"}):
        data, path = cell.get("bytes"), cell.get("path")
    data, path = (None if is_absent(value) else value for value in (data, path))
    if data is None and isinstance(path, str) and is_inline(path):
        data, path = path, None
    if isinstance(data, str):
        data = _from_base64(data, field)
    if not isinstance(data, bytes | None) or not isinstance(path, str | None):
        raise BadInput(
            f"{field} must be a picture's bytes or path, {{bytes, path}} or a list of one, got "
            f"{cell!r}"[:160]
        )
    return data or b"", path or ""


def is_inline(text: str) -> bool:
    """Returns whether a text is a picture's bytes: a data URI, or base64 of a picture."""
    return text[:5].lower() == "data:" or (
        len(text) > _SHORTEST and text.startswith(_BASE64_HEADS) and "." not in text
    )


def _from_base64(text: str, field: str) -> bytes:
    # data:image/png;base64,iVBORw0KGgo…   or the part after the comma alone
    head, comma, rest = text.partition(",")
    if text[:5].lower() == "data:":
        if not comma or not head.lower().endswith(";base64"):
            raise BadInput(f"{field} must be a data URI in base64, got {head!r:.60}")
        text = rest
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        raise BadInput(
            f"{field} must be a picture's bytes, also in base64, got the text {text!r:.60}"
        ) from None


def _is_byte(value: object) -> bool:
    return type(value) is int and 0 <= value < 256


def number_under(row: Mapping[str, Any], key: str) -> Any:
    """Returns the number under `key`, which tables store as a text."""
    return int(row[key]) if isinstance(row, TableRow) else row[key]


def literal_list(text: str, field: str) -> object:
    """Returns the value of a Python literal, which a table stores in place of a list.

    Raises:
      BadInput: if it is no literal, naming the field.
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise BadInput(f"{field} must be a list, got {text!r:.80}") from None


def answer_texts(cells: object) -> list[object]:
    """Returns the texts of answers, each of which may be a text or {"answer": text, ...}."""
    listed = cells if isinstance(cells, list) else []
    return [cell["answer"] if isinstance(cell, Mapping) else cell for cell in listed]
