"""The file of an evaluation's items: a row per item with its answer and score, as Parquet.

    id, prefix, prediction, answers, source, source_sha256    as in the file of predictions
    score          of the item [0-1]
    pseudo_value   see `PredictionScores`; a column only where the score is no plain mean of items

Rows are sorted by id. A reader takes the columns that it needs, or single rows.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from model.files import ITEMS

_ROW_GROUP = 1024
"""Rows that are stored, and read, together."""

_PSEUDO_VALUE = "pseudo_value"


def write_items(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes items into a folder.

    Args:
      folder: an existing folder.
      rows: the items, sorted by id; all or none of them have a pseudo-value.
    """
    import pyarrow as pa  # Here and below: it takes long, and few of a report's users read items.
    from pyarrow import parquet

    text, number = pa.string(), pa.float64()
    types = {
        "id": text,
        "prefix": text,
        "prediction": text,
        "answers": pa.list_(text),
        "source": text,
        "source_sha256": text,
        "score": number,
    }
    if any(_PSEUDO_VALUE in row for row in rows):
        types[_PSEUDO_VALUE] = number
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=pa.schema(types))
    parquet.write_table(table, folder / ITEMS, row_group_size=_ROW_GROUP, compression="zstd")


class ItemsFile:
    """The items in a folder; nothing but the named columns, or the rows asked for, is read."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ITEMS

    @contextlib.contextmanager
    def _open_items_table(self) -> Iterator[Any]:
        """Opens the file, and names it in errors of reading it.

        Raises:
          ValueError: if it is no table of items.
        """
        import pyarrow as pa  # Here: it takes long, and few of a report's users read items.
        from pyarrow import parquet

        try:
            with parquet.ParquetFile(self._path) as file:
                yield file
        except FileNotFoundError:
            raise
        # Of Arrow: its own errors, and what it takes for an error of the disk or of a look-up.
        except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
            if getattr(error, "errno", None) is not None:
                raise
            reason = " ".join(str(error).split())[:120]
            raise ValueError(
                f"{self._path} is no table of items, or damaged: {reason}; score it again."
            ) from None

    @property
    def has_pseudo_values(self) -> bool:
        """Whether the items have pseudo-values, since the score is no plain mean of theirs."""
        with self._open_items_table() as file:
            return _PSEUDO_VALUE in file.schema_arrow.names

    def columns(self, *names: str) -> list[list[Any]]:
        """Returns the values of some columns, each as a list in the order of the ids."""
        with self._open_items_table() as file:
            table = file.read(columns=list(names), use_threads=False)
            return [table.column(name).to_pylist() for name in names]

    def row(self, item: str) -> dict[str, Any] | None:
        """Returns an item's row; None if there is none."""
        import pyarrow.compute

        # Not by the least and greatest id that each group of rows states, nor by the filters of
        # `read_table`, which use them: of a damaged file, these end the process or wait for ever.
        with self._open_items_table() as file:
            ids = file.read(columns=["id"], use_threads=False).column("id")
            position = pyarrow.compute.index(ids, item).as_py()
            if position < 0:
                return None
            table = file.read_row_group(position // _ROW_GROUP, use_threads=False)
            return table.slice(position % _ROW_GROUP, 1).to_pylist()[0]

    def spread(self, limit: int) -> list[dict[str, Any]]:
        """Returns up to `limit` rows at even distances; other groups of rows are not read."""
        with self._open_items_table() as file:
            num = file.metadata.num_rows
            limit = min(limit, num)
            positions = [num * number // limit for number in range(limit)]
            rows = []
            for group in sorted({position // _ROW_GROUP for position in positions}):
                table = file.read_row_group(group, use_threads=False)
                for position in positions:
                    if position // _ROW_GROUP == group:
                        rows += table.slice(position % _ROW_GROUP, 1).to_pylist()
            return rows
