"""Writes a report as Markdown, CSV, JSON or LaTeX; the same report gives the same bytes."""

import csv
import dataclasses
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flows.report import result_columns
from flows.report.cells import Comparison, Report
from flows.report.json_file import to_json
from flows.report.latex import to_latex
from flows.report.markdown import to_markdown
from flows.report.result_columns import CellRow

_OPTIONAL = ("other_budget", "resolution", "backbone")
"""Columns of a comparison that are there only if some comparison has a value."""

COMPARISON_COLUMNS = tuple(
    field.name for field in dataclasses.fields(Comparison) if field.name not in _OPTIONAL
)


def render_report(report: Report, form: str) -> str:
    """Returns the report in one of `FORMATS`.

    Args:
      report: a report of at least one benchmark.
      form: "md", "csv", "json" or "latex".
    """
    if form not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {form!r}.")
    return FORMATS[form](report)


def to_csv(report: Report) -> str:
    """Returns one line per planned cell; an empty field is a missing number, never 0.

    Column `scores` holds one `seed=score` per seed, joined by spaces.
    """
    rows = [CellRow(s, c) for s in report.sections for c in s.cells if c.expected]
    columns = [
        column
        for column in result_columns.CELL_COLUMNS
        if any(map(column.is_shown, report.sections))
        if not column.is_optional or any(column.value(row) is not None for row in rows)
    ]
    return to_csv_lines(
        [column.name for column in columns],
        [{c.name: c.csv(c.value(row)) for c in columns} for row in rows],
    )


def comparisons_to_csv(report: Report) -> str:
    """Returns one line per comparison: those of each benchmark, then those over several.

    Columns `resolution` and `backbone` appear only if the report holds several of them, and
    `other_budget`, the budget of `other`, only if it is another one somewhere.
    """
    comparisons = [c for s in report.sections for c in s.comparisons] + list(report.comparisons)
    rows = [{**vars(c), "benchmarks": " ".join(c.benchmarks)} for c in comparisons]
    several = [name for name in _OPTIONAL if any(getattr(c, name) for c in comparisons)]
    return to_csv_lines((*COMPARISON_COLUMNS, *several), rows)


def latency_to_csv(report: Report) -> str:
    """Returns one line per cell with a measured time of an answer [ms]."""
    cells = (cell for section in report.sections for cell in section.cells)
    rows = [vars(cell) | {"answer_ms": cell.answer_ms} for cell in cells if cell.answer_ms]
    return to_csv_lines(("benchmark", "method", "budget", "answer_ms"), rows)


FORMATS: dict[str, Callable[[Report], str]] = {
    "md": to_markdown,
    "csv": to_csv,
    "json": to_json,
    "latex": to_latex,
}


def to_csv_lines(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns a table as CSV: floats with four decimals, None as an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([[_csv_field(row[c]) for c in columns] for row in rows])
    return text.getvalue()


def _csv_field(value: object) -> object:
    return f"{value:.4f}" if isinstance(value, float) else "" if value is None else value
