"""Writes a report as Markdown, CSV, JSON or LaTeX; the same report gives the same bytes."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from flows.report.cells import Aggregate, Cell, Comparison, Report
from flows.report.latex import to_latex
from flows.report.markdown import Link, to_markdown

COSTS = ("tokens", "tflops", "kv_mb")
_MEASURED = ("method", "budget", "mean", "std", "n", "expected", "retention", "low", "high")
_JUDGED = ("error", "margin", "above_chance", "accepted")
"""Fields of a cell that the CSV and the JSON both have, in this order."""
COLUMNS = (
    "benchmark",
    *_MEASURED,
    "chance",
    *_JUDGED,
    "metric",
    "scores",
    "group",
    "resolution",
    "unseen",
    *COSTS,
)
AGGREGATE_COLUMNS = (
    "name",
    "resolution",
    "method",
    "budget",
    "rows",
    "expected",
    "mean",
    "retention",
    "partial",
)
COMPARISON_COLUMNS = (
    "method",
    "other",
    "budget",
    "benchmarks",
    "mean",
    "low",
    "high",
    "p",
    "holm",
    "over",
    "better",
    "worse",
)


def render(report: Report, form: str, *, link: Link | None = None) -> str:
    """Returns the report in one of `FORMATS`.

    Args:
      report: a report of at least one benchmark.
      form: "md", "csv", "json" or "latex".
      link: function from a cell to its page's address, for Markdown; where it gives None, or is
        None itself, the cell is not linked.
    """
    if form == "md":
        return to_markdown(report, link=link)
    if form not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {form!r}.")
    return FORMATS[form](report)


def to_csv(report: Report) -> str:
    """Returns one line per planned cell; an empty field is a missing number, never 0.

    Column `scores` holds one `seed=score` per seed, joined by spaces.
    """
    cells = [(s, c) for s in report.sections for c in s.cells if c.expected]
    rows = [{**_numbers(c), "group": s.group, "resolution": s.resolution} for s, c in cells]
    return to_csv_lines(COLUMNS, rows)


def comparisons_to_csv(report: Report) -> str:
    """Returns one line per comparison: those of each benchmark, then those over several.

    Column `resolution` appears only if the report holds several resolutions.
    """
    found = [c for s in report.sections for c in s.comparisons] + list(report.comparisons)
    rows = [{**vars(c), "benchmarks": " ".join(c.benchmarks)} for c in found]
    several = any(c.resolution for c in found)
    return to_csv_lines(
        (*COMPARISON_COLUMNS, "resolution") if several else COMPARISON_COLUMNS, rows
    )


def latency_to_csv(report: Report) -> str:
    """Returns one line per cell with a measured time of an answer [ms]."""
    cells = (cell for section in report.sections for cell in section.cells)
    rows = [vars(cell) | {"answer_ms": cell.answer_ms} for cell in cells if cell.answer_ms]
    return to_csv_lines(("benchmark", "method", "budget", "answer_ms"), rows)


def to_json(report: Report) -> str:
    """Returns the whole report, with the score of each seed and its artifact's key."""
    sections = [
        {
            "benchmark": section.benchmark,
            "group": section.group,
            "resolution": section.resolution,
            "metric": section.metric,
            "chance": _rounded(section.chance),
            "reference": section.reference,
            "full_budget": section.full_budget,
            "items": section.items,
            "seen": section.seen,
            "cells": [_cell_json(c) for c in section.cells if c.expected],
            "comparisons": [_comparison_json(c) for c in section.comparisons],
        }
        for section in report.sections
    ]
    aggregates = [_aggregate_json(a) for a in report.aggregates]
    value = {
        "benchmarks": sections,
        "aggregates": aggregates,
        "comparisons": [_comparison_json(c) for c in report.comparisons],
        "num_pretrainings": report.num_pretrainings,
        "notes": list(report.notes),
    }
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[Report], str]] = {
    "md": to_markdown,
    "csv": to_csv,
    "json": to_json,
    "latex": to_latex,
}


def _numbers(cell: Cell) -> dict[str, Any]:
    seeds = " ".join(f"{s.seed}={s.score:.4f}" for s in cell.scores)
    own = {name: getattr(cell, name) for name in ("margin", "above_chance", "accepted")}
    # Formatted here, since four decimals would show a small model's costs as 0.0000.
    costs = {name: f"{getattr(cell.cost, name):.6g}" for name in COSTS if cell.cost}
    return {**vars(cell), **dict.fromkeys(COSTS), **own, **costs, "scores": seeds}


def to_csv_lines(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    """Returns a table as CSV: floats with four decimals, None as an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([[_field(row[c]) for c in columns] for row in rows])
    return text.getvalue()


def _field(value: object) -> object:
    return f"{value:.4f}" if isinstance(value, float) else "" if value is None else value


def _cell_json(cell: Cell) -> dict[str, Any]:
    fields = (*_MEASURED, *_JUDGED, "unseen")
    seeds = [{"seed": s.seed, "score": s.score, "artifact": s.artifact} for s in cell.scores]
    costs = {name: getattr(cell.cost, name, None) for name in COSTS}
    return {**{f: _rounded(getattr(cell, f)) for f in fields}, **costs, "scores": seeds}


def _aggregate_json(entry: Aggregate) -> dict[str, Any]:
    return {c: _rounded(getattr(entry, c)) for c in AGGREGATE_COLUMNS}


def _comparison_json(entry: Comparison) -> dict[str, Any]:
    told = {name: _rounded(value) for name, value in vars(entry).items()}
    if entry.resolution is None:
        del told["resolution"]
    return told


def _rounded(value: Any) -> Any:
    """Rounds floats to 6 decimals: the last bits may differ from one C library to the next."""
    return round(value, 6) if isinstance(value, float) else value
