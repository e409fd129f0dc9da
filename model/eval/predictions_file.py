"""The file of a checkpoint's answers: one JSON object a line, sorted by the records' ids.

Files of earlier versions have each answer's score, too, which readers ignore.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.typed_json import parse_typed, typed
from model.files import PREDICTIONS

_FIELDS = ("id", "prefix", "prediction", "answers", "source", "source_sha256")


def write_predictions(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the answers into a folder.

    Args:
      folder: an existing folder.
      rows: a row per record, in any order: its id, prefix, answers, source and that file's digest,
        and the "prediction", the text that the model wrote.
    """
    lines = (
        json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n"
        for row in sorted(rows, key=lambda row: row["id"])
    )
    (folder / PREDICTIONS).write_text("".join(lines), encoding="utf-8")


def read_predictions(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a folder's answers, in order of their ids; one is in memory at a time.

    Raises:
      ValueError: at the first row that lacks a field, or has another kind of value in it.
    """
    path = folder / PREDICTIONS
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            at = f"{path} line {number}"
            row = parse_typed(dict[str, Any], line, at)
            fields = {name: row.get(name) for name in _FIELDS}
            for name, value in fields.items():
                typed(list[str] if name == "answers" else str, value, f"{at}: {name}")
            yield fields
