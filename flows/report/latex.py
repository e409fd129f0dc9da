"""Writes a report as LaTeX tables (packages booktabs and amsmath)."""

from collections.abc import Sequence
from typing import Any

from flows.report import result_columns
from flows.report.cell_text import budget_text, range_text
from flows.report.cells import Aggregate, Report, Section
from flows.report.result_columns import CellRow, ResultColumn

_ESCAPES = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"–": "--", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


def to_latex(report: Report) -> str:
    """Returns one table per set of budgets, resolution and backbone.

    Its columns are those with a `latex_heading`. `--` marks a missing number; a cell that is not
    planned is empty. The caption says how many seeds, pretrainings and items there are, and what
    bold and stars mean.
    """
    groups: dict[Any, list[Section]] = {}
    for section in report.sections:
        groups.setdefault((section.budgets, section.view), []).append(section)
    return "\n".join(
        _table(sections, [a for a in report.aggregates if a.view == view])
        for (_, view), sections in groups.items()
    )


def _table(sections: list[Section], aggregates: list[Aggregate]) -> str:
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_caption(sections)}}}",
        _tabular(sections, aggregates).rstrip("\n"),
        r"\end{table}",
    ]
    return "\n".join([*lines, ""])


def _caption(sections: list[Section]) -> str:
    cells = [cell for section in sections for cell in section.cells if cell.expected]
    seeds = max(cell.expected for cell in cells)
    pretrainings = max(cell.pretrainings for cell in cells)
    of_pretrainings = ""
    if pretrainings:
        of_pretrainings = f" from {pretrainings} pretraining{'s' * (pretrainings != 1)}"
    items = [cell.items for cell in cells if cell.items]
    of_items = f", each score over {_escape(range_text(items))} items" if items else ""
    resolution, backbone = sections[0].view
    images = f" on {_escape(backbone)}" if backbone else ""
    images += rf" at {resolution}\,px" if resolution else ""
    starred = any(section.stands_out(cell) for section in sections for cell in section.cells)
    star = (
        r", with $^{*}$ where its difference to each other method there stands (95\,\%, corrected "
        "for the number of benchmarks)"
    )
    return (
        f"Scores{images}: mean $\\pm$ sample standard deviation over {seeds} "
        f"seed{'s' * (seeds != 1)}{of_pretrainings}{of_items}. "
        f"Bold: the best at a budget{star * starred}."
    )


def _tabular(sections: list[Section], aggregates: list[Aggregate]) -> str:
    columns = [column for column in result_columns.CELL_COLUMNS if column.latex_heading]
    budgets = sections[0].budgets
    # Two lines of headings. A column with a field per budget has its name above the budgets, and a
    # rule (cmidrule) between; one that is shared has its name in the lower line:
    #
    #              &        &    Score    & Retention [%] &
    #              &        & ----------- & ------------- &
    #    Benchmark & Method &  64  &  256 &  64  &  256   & Chance
    upper, lower, rules = [], ["Benchmark", "Method"], []
    for column in columns:
        if column.is_shared:
            upper.append("")
            lower.append(column.latex_heading)
            continue
        start = len(lower) + 1  # LaTeX counts columns from 1.
        upper.append(rf"\multicolumn{{{len(budgets)}}}{{c}}{{{column.latex_heading}}}")
        lower += [_escape(budget_text(budget)) for budget in budgets]
        rules.append(rf"\cmidrule(lr){{{start}-{len(lower)}}}")
    # Two columns of names set to the left, all numbers to the right.
    lines = [
        rf"\begin{{tabular}}{{ll{'r' * (len(lower) - 2)}}}",
        r"\toprule",
        rf"& & {' & '.join(upper).rstrip()} \\",
        " ".join(rules),
        _tabular_row(lower),
    ]
    for section in sections:
        lines += [r"\midrule", *_section_rows(section, columns)]
    for name in dict.fromkeys(a.name for a in aggregates):
        of_name = [a for a in aggregates if a.name == name]
        lines += [r"\midrule", *_aggregate_rows(of_name, budgets, columns)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _section_rows(section: Section, columns: Sequence[ResultColumn[CellRow]]) -> list[str]:
    rows = []
    for i, method in enumerate(section.methods):
        cells = [CellRow(section, section.cell(method, budget)) for budget in section.budgets]
        # The benchmark, and what its cells share, stand in its first row only.
        fields = [_escape(section.title) if i == 0 else "", _escape(method)]
        for column in columns:
            if column.is_shared:
                fields.append(column.latex_of(cells[0]) if i == 0 else "")
            else:
                fields += [column.latex_of(row) if row.cell.expected else "" for row in cells]
        rows.append(_tabular_row(fields))
    return rows


def _aggregate_rows(
    aggregates: list[Aggregate], budgets: Sequence[int], columns: Sequence[ResultColumn[CellRow]]
) -> list[str]:
    """Returns a row per method, each mean below the cells' column of the same name."""
    means = {column.name: column for column in result_columns.AGGREGATE_COLUMNS}
    first = aggregates[0]
    rows = []
    for i, method in enumerate(dict.fromkeys(a.method for a in aggregates)):
        by_budget = {a.budget: a for a in aggregates if a.method == method}
        name = f"Mean, {_escape(first.name)} ({first.expected})" if i == 0 else ""
        fields = [name, _escape(method)]
        # A mean stands below the scores that it is of; a column without means stays empty there.
        for column in columns:
            across = [None] if column.is_shared else [by_budget.get(b) for b in budgets]
            mean = means.get(column.name)
            fields += [mean.latex_of(entry) if mean and entry else "" for entry in across]
        rows.append(_tabular_row(fields))
    return rows


def _tabular_row(fields: Sequence[str]) -> str:
    return " & ".join(fields) + r" \\"


def _escape(text: str) -> str:
    return text.translate(_ESCAPES)
