"""Files of what pages show: tables as CSV, LaTeX and Parquet, figures as PNG, SVG and PDF."""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flows.lookup.runs import run_outcome
from flows.pages.compare_page import CellPair
from flows.pages.item_scores import Reader, ScoredItem
from flows.pages.overview import run_seconds
from flows.pages.run_results import Column
from flows.report.cells import Report

# Private there, since the code of `flows.report` decides the bytes of results.
from flows.report.latex import escape_latex
from flows.report.render import render_report, to_csv_lines

Row = Mapping[str, Any]
"""Name of a column -> its value: text, a number, texts, or None for none."""

TABLE_FORMS = {
    "csv": "text/csv",
    "tex": "application/x-tex",
    "parquet": "application/vnd.apache.parquet",
}
"""Form of a table, which is the ending of its file -> its media type."""
FIGURE_FORMS = {"png": "image/png", "svg": "image/svg+xml", "pdf": "application/pdf"}
"""The same for figures."""

_TEXTS = ("benchmark", "method", "metric", "scores", "group", "backbone")
"""Columns of a report's CSV that are text."""


class Download(NamedTuple):
    """A file: its bytes, media type and name."""

    data: bytes
    media_type: str
    name: str


def report_file(report: Report, form: str) -> bytes:
    """Returns a report as a file, one of `TABLE_FORMS`, with a row per planned cell.

    CSV and LaTeX are those of `parcel results`; Parquet has the columns of the CSV, each as a
    number or text.
    """
    if form != "parquet":
        return render_report(report, {"tex": "latex"}.get(form, form)).encode()
    import pyarrow as pa  # Here: it takes long.
    from pyarrow import csv, parquet

    # The form of other columns is told by their values; text that looks like a number stays text.
    texts = csv.ConvertOptions(
        column_types=dict.fromkeys(_TEXTS, pa.string()), strings_can_be_null=True
    )
    file = io.BytesIO()
    table = csv.read_csv(io.BytesIO(render_report(report, "csv").encode()), convert_options=texts)
    parquet.write_table(table, file)
    return file.getvalue()


def table_file(rows: Sequence[Row], form: str) -> bytes:
    """Returns rows, which have the same columns, as a file, one of `TABLE_FORMS`."""
    columns = list(rows[0]) if rows else []
    if form == "parquet":
        import pyarrow as pa
        from pyarrow import parquet

        file = io.BytesIO()
        parquet.write_table(pa.Table.from_pylist([dict(row) for row in rows]), file)
        return file.getvalue()
    texts = [{k: " | ".join(v) if isinstance(v, list) else v for k, v in r.items()} for r in rows]
    if form == "csv":
        plain = [{k: _no_formula(v) for k, v in row.items()} for row in texts]
        return to_csv_lines(columns, plain).encode()
    lines = [
        " & ".join(escape_latex(text) for text in line) + r" \\"
        for line in (columns, *(map(_text_of, row.values()) for row in texts))
    ]
    head = [rf"\begin{{tabular}}{{{'l' * len(columns)}}}", r"\toprule", *lines[:1], r"\midrule"]
    return "\n".join([*head, *lines[1:], r"\bottomrule", r"\end{tabular}", ""]).encode()


def _no_formula(value: object) -> object:
    """Returns a value with ' before a text that a spreadsheet would compute: a model wrote it."""
    # Source: OWASP's page on CSV injection. "-5" is a number there, and nothing is computed.
    is_formula = isinstance(value, str) and re.match(r"(?![+-][\d.]+$)[=+@\t\r-]", value)
    return f"'{value}" if is_formula else value


def _text_of(value: object) -> str:
    if value is None:
        return "--"
    # An empty line would end the tabular.
    return f"{value:.1f}" if isinstance(value, float) else " ".join(str(value).split())


def run_rows(runs: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[Row]:
    """Yields a row per run of its full name and record."""
    for run, record in runs:
        yield {
            "run": run,
            **{
                name: record.get(name)
                for name in ("name", "began", "finished", "who", "given", "note")
            },
            "tags": list(record.get("tags", ())),
            "seconds": run_seconds(record),
            "outcome": run_outcome(record),
            "best_score": record.get("headline", {}).get("score"),
            "failed": len(record["failed"]),
            "not_run": len(record.get("holes", ())),
        }


def pair_rows(pairs: Iterable[CellPair]) -> Iterator[Row]:
    """Yields a row per pair of cells that are compared; `mean` is that of the difference."""
    for pair in pairs:
        names = dict(zip(("a", "b"), pair.names, strict=True))
        scores = {f"score_{side}": c.mean for side, c in zip(names, pair.cells, strict=True)}
        found = ("mean", "low", "high", "seeds", "pretrainings", "items", "reason")
        difference = {name: getattr(pair.difference, name, None) for name in found}
        reason = difference["reason"] or pair.reason
        yield {"cell": pair.label, **names, **scores, **difference, "reason": reason}


def item_rows(
    reader: Reader, columns: Sequence[Column], items: Sequence[ScoredItem]
) -> Iterator[Row]:
    """Yields a row per item: its question, then each column's score, and its answers by seed."""
    types, fields = reader.types(columns[0]), ("prefix", "answers", "prediction")
    read: dict[str, dict[str, list[Any]]] = {}
    for column in columns:
        for seed, key in column.artifacts.items():
            ids, *values = reader.file(key).columns("id", *fields)
            rows = zip(ids, map(list, zip(*values, strict=True)), strict=True)
            read[f"{column.name}, seed {seed}"] = dict(rows)
    first = next(iter(read.values()))
    for item in items:
        yield {
            "id": item.id,
            "type": types[item.id],
            "question": first[item.id][0],
            "accepted": first[item.id][1],
            **{f"{c.name} score": s for c, s in zip(columns, item.scores, strict=True)},
            **{name: rows[item.id][2] if item.id in rows else None for name, rows in read.items()},
        }
