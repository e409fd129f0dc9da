"""Writes tables in the layout of VLMEvalKit's own."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openpyxl


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Writes rows in the form that the path's suffix names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(rows[0])
    lines = [columns, *([row.get(column) for column in columns] for row in rows)]
    if path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=4, ensure_ascii=False), encoding="utf-8")
    elif path.suffix == ".xlsx":
        book = openpyxl.Workbook(write_only=True)
        sheet = book.create_sheet()
        for line in lines:
            sheet.append(line)
        book.save(path)
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            separator = "\t" if path.suffix == ".tsv" else ","
            csv.writer(file, delimiter=separator, quoting=csv.QUOTE_ALL).writerows(lines)
    return path


def write_results(
    root: Path,
    model: str,
    scores: Sequence[float],
    *,
    dataset: str = "ChartQA_TEST",
    kind: str = "results",
    column: str = "eval_score",
    means: Sequence[Mapping[str, Any]] = (),
    means_kind: str = "acc",
    form: str = ".xlsx",
    question: str = "How many?",
    answer: str = "4",
    splits: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a table of scored answers, and one of means, of a model on a dataset."""
    rows = []
    for number, score in enumerate(scores):
        row: dict[str, Any] = {
            "index": number,
            "question": f"{question} {number}",
            "answer": answer,
            "prediction": f"{score:g}\u00e9, or\nso",
            column: score,
            "note": None,
        }
        if splits:
            row["split"] = splits[number]
        rows.append({**row, **(extra or {})})
    name = f"{model}_{dataset}"
    write_table(root / model / f"{name}{form}", rows)
    overall = [{"Overall": 100 * sum(scores) / len(scores), "None": 3.5}]
    write_table(root / model / f"{name}_{means_kind}.csv", means or overall)
    return write_table(root / model / f"{name}_{kind}{form}", rows)
